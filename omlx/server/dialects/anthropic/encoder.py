"""Anthropic's dialect: events to a message or to a stream. Pure; no I/O.

A stream is: message_start, ping, content blocks in sequence (start, deltas, stop), message_delta
with the stop reason and the final counts, message_stop. The number of cached prompt tokens is known
only at the end: `input_tokens` counts the whole prompt in message_start, the uncached tokens in
message_delta.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from omlx.engine.types import FinishReason
from omlx.errors import OmlxError, Reason
from omlx.server.dialects.anthropic.blocks import (
    MCP_RESULT,
    MCP_USE,
    SEARCH_RESULT,
    SEARCH_USE,
    USES,
    WEB_SEARCH,
)
from omlx.server.http import errors
from omlx.server.http.transport import Json
from omlx.server.request import tooling
from omlx.server.request.content import REASONING_SHOWN, encode_reasoning
from omlx.server.request.dialect import EventEncoder
from omlx.server.request.stream import ChoiceEvent
from omlx.server.request.usage import context, receipt, timings, warnings
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
    ToolReturned,
    ToolsListed,
)
from omlx.tools.tool import WEB, OfferedTool, ToolResult

PING: Final[Json] = {"type": "ping"}
_COUNTS: Final = ("usage", "timings", "warnings", "receipt")
"""Fields of message_delta copied to a whole message."""


class MessageEncoder(EventEncoder):
    """An answer as a message. `prompt_n`: tokens of the prompt; `max_tokens`: as requested;
    `hidden`: reasoning is not shown; `run_here`: server tools by function.
    """

    def __init__(
        self,
        id: str,
        model: str,
        prompt_n: int,
        *,
        max_tokens: int,
        hidden: bool = False,
        run_here: Mapping[str, OfferedTool] = MappingProxyType({}),
        warnings: Sequence[Reason] = (),
    ) -> None:
        self._id, self._model, self._prompt_n, self._max_tokens = id, model, prompt_n, max_tokens
        self._hidden, self._warnings = hidden, warnings
        self._run_here = run_here
        self._called: dict[str, tuple[str, str]] = {}  # type and id of a call's block, by its id
        self._searches = 0
        self._index = -1
        self._open: str | None = None  # type of the open content block
        self._reasoning = ""

    def start(self) -> list[Json]:
        message = self._message([], None) | {"usage": _usage(self._prompt_n, 0, 0, 0)}
        return [{"type": "message_start", "message": message}, PING]

    def failed(self, error: OmlxError) -> list[Json]:
        return [errors.anthropic(error)]

    def body(self, events: Sequence[ChoiceEvent]) -> Json:
        """Return the message accumulated from the payloads of a stream."""
        content: list[Json] = []
        finish = None
        for payload in self.feed(events):
            match payload["type"]:
                case "content_block_start":
                    content.append(dict(payload["content_block"]))
                case "content_block_delta":
                    _add(content[-1], payload["delta"])
                case "message_delta":
                    finish = payload
        assert finish is not None
        for block in content:
            if block["type"] in USES:
                block["input"] = tooling.argument_object(block.pop("partial_json", ""))
        counts = {name: finish[name] for name in _COUNTS if name in finish}
        return self._message(content, finish["delta"]) | counts

    def _message(self, content: list[Json], delta: Json | None) -> Json:
        ended = delta or {"stop_reason": None, "stop_sequence": None}
        head = {"id": self._id, "type": "message", "role": "assistant", "model": self._model}
        return head | {"content": content} | ended

    def _encode(self, choice: int, event: OutputEvent) -> list[Json]:
        match event:
            case TextDelta(text=text):
                return [*self._enter("text", {"text": ""}), self._delta("text_delta", text=text)]
            case ReasoningDelta(text=text):
                self._reasoning += text
                payloads = self._enter("thinking", {"thinking": "", "signature": ""})
                if not self._hidden:
                    payloads.append(self._delta("thinking_delta", thinking=text))
                return payloads
            case ToolCallStart(id=id, name=name):
                kind, fields = call_block(tool_id(id), name, self._run_here.get(name))
                self._called[id] = kind, fields["id"]
                return [*self._leave(), *self._enter(kind, fields)]
            case ToolCallArguments(text=text):
                return [self._delta("input_json_delta", partial_json=text)]
            case ToolCallEnd():
                return self._leave()
            case PromptLogprobs() | HiddenLogprobs() | ToolsListed():
                return []
            case ToolReturned(id=id, result=result):
                return self._returned(id, result)
            case Finish():
                return [*self._leave(), self._end(event), {"type": "message_stop"}]

    def _returned(self, id: str, result: ToolResult) -> list[Json]:
        """Return a result's block, complete in the first event."""
        kind, block_id = self._called[id]
        if kind == SEARCH_USE:
            self._searches += 1
        return [*self._enter(*result_block(kind, block_id, result)), *self._leave()]

    def _enter(self, kind: str, fields: Json) -> list[Json]:
        """Continue a block of `kind`, or end the open block and start a new one."""
        if self._open == kind:
            return []
        payloads = self._leave()
        self._open, self._index = kind, self._index + 1
        block = {"type": kind, **fields}
        start = {"type": "content_block_start", "index": self._index, "content_block": block}
        return [*payloads, start]

    def _leave(self) -> list[Json]:
        if self._open is None:
            return []
        payloads: list[Json] = []
        if self._open == "thinking":
            signature = REASONING_SHOWN
            # hidden reasoning travels in the signature, for the next turn
            if self._hidden:
                signature = encode_reasoning(self._reasoning)
            payloads.append(self._delta("signature_delta", signature=signature))
            self._reasoning = ""
        self._open = None
        return [*payloads, {"type": "content_block_stop", "index": self._index}]

    def _delta(self, kind: str, **fields: str) -> Json:
        return {
            "type": "content_block_delta",
            "index": self._index,
            "delta": {"type": kind, **fields},
        }

    def _end(self, finish: Finish) -> Json:
        stats = finish.stats
        searches: Json = {}
        if self._searches:
            searches = {"server_tool_use": {"web_search_requests": self._searches}}
        return {
            "type": "message_delta",
            "delta": {"stop_reason": self._reason(finish), "stop_sequence": finish.stop},
            "usage": _usage(
                stats.prompt_n - stats.cached_n,
                stats.cached_n,
                stats.predicted_n,
                finish.reasoning_tokens,
            )
            | context([stats])
            | searches,
            "timings": timings([finish]),
            **warnings(self._warnings),
            **receipt([finish]),
        }

    def _reason(self, finish: Finish) -> str:
        if finish.reason is FinishReason.LENGTH:
            if finish.stats.predicted_n < self._max_tokens:
                return "model_context_window_exceeded"
            return "max_tokens"
        if finish.stop is not None:
            return "stop_sequence"
        if finish.tool_calls:
            return "tool_use"
        return "end_turn"


def _usage(fresh: int, cached: int, output: int, thinking: int) -> Json:
    return {
        "input_tokens": fresh,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": output,
        "output_tokens_details": {"thinking_tokens": thinking},
    }


def tool_id(id: str) -> str:
    """Return an id of a call as Anthropic's API writes ids."""
    if id.startswith("call_"):
        return f"toolu_{id.removeprefix('call_')}"
    return id


def _add(block: Json, delta: Json) -> None:
    for name, value in delta.items():
        if name != "type":
            block[name] = block.get(name, "") + value


def call_block(id: str, name: str, known: OfferedTool | None) -> tuple[str, Json]:
    """Return type and first fields of a call's block."""
    if known is None:
        return "tool_use", {"id": id, "name": name, "input": {}}
    number = id.rpartition("_")[2]
    tool = known.tool
    if tool.server == WEB:
        return SEARCH_USE, {"id": f"srvtoolu_{number}", "name": WEB_SEARCH, "input": {}}
    fields = {"id": f"mcptoolu_{number}", "name": tool.name, "server_name": tool.server}
    return MCP_USE, {**fields, "input": {}}


def result_block(kind: str, id: str, result: ToolResult) -> tuple[str, Json]:
    """Return type and fields of a result's block; `kind`: type of the call's block.

    The excerpt of a page travels in `encrypted_content`, for the next turn.
    """
    if kind == MCP_USE:
        content = [{"type": "text", "text": result.text}]
        return MCP_RESULT, {"tool_use_id": id, "is_error": result.failed, "content": content}
    found: Any = [
        {
            "type": "web_search_result",
            "title": page.title,
            "url": page.url,
            "encrypted_content": encode_reasoning(page.excerpt),
            "page_age": None,
        }
        for page in result.pages
    ]
    if result.failed:
        code = "max_uses_exceeded" if result.refused else "unavailable"
        found = {"type": "web_search_tool_result_error", "error_code": code}
    return SEARCH_RESULT, {"tool_use_id": id, "content": found}
