"""OpenAI's chat completions: events to a JSON body or to chunks. Pure; no I/O."""

from __future__ import annotations

from collections.abc import Sequence

from omlx.engine.types import TokenLogprob
from omlx.server.dialects.openai.choices import (
    ChoicesEncoder,
    Head,
    all_logprobs,
    finish_of,
    finish_reason,
)
from omlx.server.request.dialect import Json
from omlx.server.request.logprobs import logprob_entries
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


class ChatEncoder(ChoicesEncoder):
    """An answer of `n` choices. A stream begins with a chunk with the role for each choice."""

    KIND = "chat.completion"
    CHUNK_KIND = "chat.completion.chunk"
    CONTENT = "delta"
    PROMPT = "messages"

    def __init__(self, head: Head, n: int, *, include_usage: bool = False) -> None:
        super().__init__(head, n, 1, include_usage=include_usage)

    def start(self) -> list[Json]:
        role = {"role": "assistant", "content": None}
        return [self._chunk(choice, role) for choice in range(self._total)]

    def _content(self, event: OutputEvent) -> Json:
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

    def _logprobs(self, choice: int, entries: Sequence[TokenLogprob]) -> Json | None:
        if self._head.token_bytes is None or not entries:
            return None
        return {"content": logprob_entries(entries, self._head.token_bytes), "refusal": None}

    def _choice(self, index: int, events: Sequence[OutputEvent]) -> Json:
        return {
            "index": index,
            "message": _message(events),
            "logprobs": self._logprobs(index, all_logprobs(events)),
            "finish_reason": finish_reason(finish_of(events)),
        }


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
