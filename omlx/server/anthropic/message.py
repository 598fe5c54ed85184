"""Anthropic's dialect, outwards: events to a message or to the events of a stream. Pure; no I/O.

A stream is: message_start, ping, then content blocks one after another (start, deltas, stop), then message_delta with
the reason and the final counts, and message_stop. What is left of the prompt after the cache is known at the end, so
`input_tokens` of message_delta is the one that counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from omlx.engine.types import FinishReason
from omlx.errors import OmlxError
from omlx.server import errors, opaque_reasoning, tooling
from omlx.server.dialect import ChoiceEvent, Json
from omlx.server.usage import timings
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

PING: Final[Json] = {"type": "ping"}


class MessageEncoder:
    """`prompt_n` tokens of prompt; `max_tokens` is what was asked for; `hidden`: thinking is not shown."""

    def __init__(
        self, id: str, model: str, prompt_n: int, *, max_tokens: int, hidden: bool = False
    ) -> None:
        self._id, self._model, self._prompt_n, self._max_tokens = id, model, prompt_n, max_tokens
        self._hidden = hidden
        self._index = -1
        self._open: str | None = None
        self._thought = ""

    def start(self) -> list[Json]:
        message = self._message([], None) | {"usage": _usage(self._prompt_n, 0, 0, 0)}
        return [{"type": "message_start", "message": message}, PING]

    def feed(self, events: Sequence[ChoiceEvent]) -> list[Json]:
        return [told for each in events for told in self._encode(each.event)]

    def failed(self, error: OmlxError) -> list[Json]:
        return [errors.anthropic(error)]

    def body(self, events: Sequence[ChoiceEvent]) -> Json:
        """The message that its stream would add up to."""
        content: list[Json] = []
        finish = None
        for told in self.feed(events):
            match told["type"]:
                case "content_block_start":
                    content.append(dict(told["content_block"]))
                case "content_block_delta":
                    _add(content[-1], told["delta"])
                case "message_delta":
                    finish = told
        assert finish is not None
        for block in content:
            if block["type"] == "tool_use":
                block["input"] = tooling.written(block.pop("partial_json", ""))
        told = {"usage": finish["usage"], "timings": finish["timings"]}
        return self._message(content, finish["delta"]) | told

    def _message(self, content: list[Json], delta: Json | None) -> Json:
        ended = delta or {"stop_reason": None, "stop_sequence": None}
        head = {"id": self._id, "type": "message", "role": "assistant", "model": self._model}
        return head | {"content": content} | ended

    def _encode(self, event: OutputEvent) -> list[Json]:
        match event:
            case TextDelta(text=text):
                return [*self._enter("text", {"text": ""}), self._delta("text_delta", text=text)]
            case ReasoningDelta(text=text):
                self._thought += text
                entered = self._enter("thinking", {"thinking": "", "signature": ""})
                return (
                    entered
                    if self._hidden
                    else [*entered, self._delta("thinking_delta", thinking=text)]
                )
            case ToolCallStart(id=id, name=name):
                return self._enter(
                    "tool_use", {"id": _tool_id(id), "name": name, "input": {}}, fresh=True
                )
            case ToolCallArguments(text=text):
                return [self._delta("input_json_delta", partial_json=text)]
            case ToolCallEnd():
                return self._leave()
            case PromptLogprobs() | HiddenLogprobs():
                return []
            case Finish():
                return [*self._leave(), self._end(event), {"type": "message_stop"}]

    def _enter(self, kind: str, fields: Json, *, fresh: bool = False) -> list[Json]:
        """Go on with a block of this kind, or end the open one and begin another."""
        if self._open == kind and not fresh:
            return []
        left = self._leave()
        self._open, self._index = kind, self._index + 1
        block = {"type": kind, **fields}
        return [
            *left,
            {"type": "content_block_start", "index": self._index, "content_block": block},
        ]

    def _leave(self) -> list[Json]:
        if self._open is None:
            return []
        told: list[Json] = []
        if self._open == "thinking":
            signed = (
                opaque_reasoning.encode(self._thought) if self._hidden else opaque_reasoning.SHOWN
            )
            told.append(self._delta("signature_delta", signature=signed))
            self._thought = ""
        self._open = None
        return [*told, {"type": "content_block_stop", "index": self._index}]

    def _delta(self, kind: str, **fields: str) -> Json:
        return {
            "type": "content_block_delta",
            "index": self._index,
            "delta": {"type": kind, **fields},
        }

    def _end(self, finish: Finish) -> Json:
        stats = finish.stats
        return {
            "type": "message_delta",
            "delta": {"stop_reason": self._reason(finish), "stop_sequence": finish.stop},
            "usage": _usage(
                stats.prompt_n - stats.cached_n,
                stats.cached_n,
                stats.predicted_n,
                finish.reasoning_tokens,
            ),
            "timings": timings([finish]),
        }

    def _reason(self, finish: Finish) -> str:
        if finish.reason is FinishReason.LENGTH:
            short = finish.stats.predicted_n < self._max_tokens
            return "model_context_window_exceeded" if short else "max_tokens"
        if finish.stop is not None:
            return "stop_sequence"
        return "tool_use" if finish.tool_calls else "end_turn"


def _usage(fresh: int, cached: int, output: int, thinking: int) -> Json:
    return {
        "input_tokens": fresh,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": output,
        "output_tokens_details": {"thinking_tokens": thinking},
    }


def _tool_id(id: str) -> str:
    return f"toolu_{id.removeprefix('call_')}" if id.startswith("call_") else id


def _add(block: Json, delta: Json) -> None:
    for name, value in delta.items():
        if name != "type":
            block[name] = block.get(name, "") + value
