"""OpenAI's chat completions: events to a JSON body or to chunks. Pure; no I/O.

A stream is: a chunk with the role for each choice, deltas, a chunk with the finish reason for each
choice, and with `include_usage` a last one without choices. `timings` are in the last chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from omlx.engine.types import TokenLogprob
from omlx.errors import OmlxError
from omlx.server import errors
from omlx.server.dialect import ChoiceEvent, Json
from omlx.server.openai.head import Head, finite, reason
from omlx.server.usage import timings, usage
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


class ChatEncoder:
    """An answer of `n` choices."""

    def __init__(self, head: Head, n: int, *, include_usage: bool = False) -> None:
        self._head = head
        self._n = n
        self._include_usage = include_usage
        self._finishes: dict[int, Finish] = {}

    def start(self) -> list[Json]:
        return [
            self._chunk(choice, {"role": "assistant", "content": ""}) for choice in range(self._n)
        ]

    def feed(self, events: Sequence[ChoiceEvent]) -> list[Json]:
        chunks: list[Json] = []
        for event in events:
            chunks += self._encode(event.choice, event.event)
        return chunks

    def failed(self, error: OmlxError) -> list[Json]:
        return [errors.openai(error)]

    def body(self, events: Sequence[ChoiceEvent]) -> Json:
        by_choice: dict[int, list[OutputEvent]] = {}
        for event in events:
            by_choice.setdefault(event.choice, []).append(event.event)
        outputs = sorted(by_choice.items())
        choices = [self._choice(index, output) for index, output in outputs]
        finishes = [finish_of(output) for _, output in outputs]
        counts = {"usage": usage(finishes), "timings": timings(finishes)}
        return self._head.body("chat.completion", choices) | counts

    def _encode(self, choice: int, event: OutputEvent) -> list[Json]:
        logprobs = _logprobs(event.logprobs, self._head.token_bytes)
        if not isinstance(event, Finish):
            delta = _delta(event)
            return [self._chunk(choice, delta, logprobs)] if delta or logprobs else []
        self._finishes[choice] = event
        chunks = [self._chunk(choice, {}, logprobs, reason(event))]
        if len(self._finishes) == self._n:
            finishes = [self._finishes[i] for i in range(self._n)]
            if self._include_usage:
                chunks.append(
                    self._head.body("chat.completion.chunk", []) | {"usage": usage(finishes)}
                )
            chunks[-1]["timings"] = timings(finishes)
        return chunks

    def _chunk(
        self,
        choice: int,
        delta: Json,
        logprobs: Json | None = None,
        finish_reason: str | None = None,
    ) -> Json:
        entry = {
            "index": choice,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
        chunk = self._head.body("chat.completion.chunk", [entry])
        if self._include_usage:
            chunk["usage"] = None
        return chunk

    def _choice(self, index: int, events: Sequence[OutputEvent]) -> Json:
        logprobs = list(chain.from_iterable(event.logprobs for event in events))
        return {
            "index": index,
            "message": _message(events),
            "logprobs": _logprobs(logprobs, self._head.token_bytes),
            "finish_reason": reason(finish_of(events)),
        }


def finish_of(events: Iterable[OutputEvent]) -> Finish:
    """The last event of a finished choice."""
    return next(event for event in events if isinstance(event, Finish))


def _message(events: Sequence[OutputEvent]) -> Json:
    """The whole message; its content is null if there is none beside tool calls."""
    text = "".join(event.text for event in events if isinstance(event, TextDelta))
    reasoning = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
    calls = [_call(event, events) for event in events if isinstance(event, ToolCallStart)]
    message: Json = {"role": "assistant", "content": text}
    if calls and not text:
        message["content"] = None
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def _call(start: ToolCallStart, events: Sequence[OutputEvent]) -> Json:
    pieces = [
        event.text
        for event in events
        if isinstance(event, ToolCallArguments) and event.index == start.index
    ]
    return {
        "id": start.id,
        "type": "function",
        "function": {"name": start.name, "arguments": "".join(pieces)},
    }


def _delta(event: OutputEvent) -> Json:
    match event:
        case TextDelta(text=text):
            return {"content": text}
        case ReasoningDelta(text=text):
            return {"reasoning_content": text}
        case ToolCallStart(index=index, id=id, name=name):
            function = {"name": name, "arguments": ""}
            call = {"index": index, "id": id, "type": "function", "function": function}
            return {"tool_calls": [call]}
        case ToolCallArguments(index=index, text=text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
        case ToolCallEnd() | PromptLogprobs() | HiddenLogprobs() | Finish():
            return {}


def _logprobs(
    entries: Sequence[TokenLogprob], token_bytes: Callable[[int], bytes] | None
) -> Json | None:
    if token_bytes is None or not entries:
        return None
    return {"content": logprob_entries(entries, token_bytes), "refusal": None}


def logprob_entries(
    entries: Sequence[TokenLogprob], token_bytes: Callable[[int], bytes]
) -> list[Json]:
    def token(id: int, logprob: float) -> Json:
        raw = token_bytes(id)
        text = raw.decode("utf-8", "replace")
        return {"token": text, "logprob": finite(logprob), "bytes": list(raw)}

    encoded = []
    for entry in entries:
        top = [token(id, logprob) for id, logprob in entry.top]
        encoded.append(token(entry.token, entry.logprob) | {"top_logprobs": top})
    return encoded
