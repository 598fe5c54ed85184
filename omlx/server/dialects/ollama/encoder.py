"""Ollama's chat and completions: events to a JSON body or to a stream. Pure; no I/O.

A stream is: objects with pieces of text or thinking, or with whole tool calls, and a last object
with `done`, counts and durations in nanoseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from omlx.engine.types import FinishReason, TokenLogprob
from omlx.errors import OmlxError, Reason
from omlx.server.http import errors
from omlx.server.http.transport import Json
from omlx.server.request import tooling
from omlx.server.request.dialect import EventEncoder
from omlx.server.request.stream import ChoiceEvent
from omlx.server.request.usage import context, logprob_entries, timings, warnings
from omlx.text.events import (
    Finish,
    HiddenLogprobs,
    OutputEvent,
    PromptLogprobs,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)

_NS: Final = 1_000_000
"""Nanoseconds of a millisecond: the unit of durations."""


@dataclass(frozen=True, slots=True)
class Head:
    """Fields of every line. `created_at`: ISO time; `load_ms`: wait for the model; `token_bytes`:
    None without logprobs.
    """

    model: str
    created_at: str
    load_ms: float = 0.0
    token_bytes: Callable[[int], bytes] | None = None
    warnings: tuple[Reason, ...] = ()

    def body(self, content: Json, *, done: bool) -> Json:
        return {"model": self.model, "created_at": self.created_at, **content, "done": done}


class AnswerEncoder(EventEncoder):
    """Encodes an answer; subclasses place the content within an object."""

    TEXT: ClassVar[str]
    """Field of the text, next to `thinking` and `tool_calls`."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._calls: dict[int, Json] = {}

    def start(self) -> list[Json]:
        return []

    def failed(self, error: OmlxError) -> list[Json]:
        return [errors.ollama(error)]

    def body(self, events: Sequence[ChoiceEvent]) -> Json:
        outputs = [event.event for event in events]
        texts = [event.text for event in outputs if isinstance(event, TextDelta)]
        fields: Json = {self.TEXT: "".join(texts)}
        thoughts = [event.text for event in outputs if isinstance(event, ReasoningDelta)]
        if thoughts:
            fields["thinking"] = "".join(thoughts)
        calls = [call for event in outputs for call in self._called(event)]
        if calls:
            fields["tool_calls"] = calls
        logprobs = [entry for event in outputs for entry in event.logprobs]
        (finish,) = (event for event in outputs if isinstance(event, Finish))
        return self._object(fields, logprobs, done=True) | self._counts(finish)

    def no_answer(self, reason: str) -> Json:
        """Return the body of a request that only loads or unloads the model."""
        duration = round(self._head.load_ms * _NS)
        durations = {"total_duration": duration, "load_duration": duration}
        return self._object({self.TEXT: ""}, (), done=True) | {"done_reason": reason} | durations

    def content(self, fields: Json) -> Json:
        """Return `fields` at their place in an object."""
        raise NotImplementedError

    def _encode(self, choice: int, event: OutputEvent) -> list[Json]:
        fields: Json = {}
        match event:
            case TextDelta(text=text):
                fields = {self.TEXT: text}
            case ReasoningDelta(text=text):
                fields = {self.TEXT: "", "thinking": text}
            case ToolCallStart() | ToolCallArguments() | ToolCallEnd():
                if calls := self._called(event):
                    fields = {self.TEXT: "", "tool_calls": calls}
            case PromptLogprobs() | HiddenLogprobs():
                pass
            case Finish():
                last = self._object({self.TEXT: ""}, event.logprobs, done=True)
                return [last | self._counts(event)]
        if not fields and not (event.logprobs and self._head.token_bytes):
            return []
        return [self._object(fields or {self.TEXT: ""}, event.logprobs, done=False)]

    def _called(self, event: OutputEvent) -> list[Json]:
        """Return the call that ends with this event, if any: Ollama's clients get whole calls."""
        match event:
            case ToolCallStart(index=index, id=id, name=name):
                self._calls[index] = {"id": id, "name": name, "arguments": ""}
            case ToolCallArguments(index=index, text=text):
                self._calls[index]["arguments"] += text
            case ToolCallEnd(index=index):
                call = self._calls.pop(index)
                arguments = tooling.argument_object(call["arguments"])
                function = {"index": index, "name": call["name"], "arguments": arguments}
                return [{"id": call["id"], "function": function}]
        return []

    def _object(self, fields: Json, logprobs: Sequence[TokenLogprob], *, done: bool) -> Json:
        content = self.content(fields)
        if logprobs and self._head.token_bytes is not None:
            content["logprobs"] = logprob_entries(logprobs, self._head.token_bytes)
        return self._head.body(content, done=done)

    def _counts(self, finish: Finish) -> Json:
        stats, load_ms = finish.stats, self._head.load_ms
        total_ms = load_ms + stats.queue_ms + stats.prompt_ms + stats.predicted_ms
        return {
            "done_reason": "length" if finish.reason is FinishReason.LENGTH else "stop",
            "total_duration": round(total_ms * _NS),
            "load_duration": round(load_ms * _NS),
            "prompt_eval_count": stats.prompt_n,
            "prompt_eval_duration": round(stats.prompt_ms * _NS),
            "eval_count": stats.predicted_n,
            "eval_duration": round(stats.predicted_ms * _NS),
            **context([stats]),
            "timings": timings([finish]),
            **warnings(self._head.warnings),
        }


class ChatEncoder(AnswerEncoder):
    TEXT = "content"

    def content(self, fields: Json) -> Json:
        return {"message": {"role": "assistant", **fields}}


class CompletionEncoder(AnswerEncoder):
    TEXT = "response"

    def content(self, fields: Json) -> Json:
        return dict(fields)
