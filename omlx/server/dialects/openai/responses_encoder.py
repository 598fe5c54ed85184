"""The Responses API: events to a response or to a stream. Pure; no I/O.

A stream is: response.created, response.in_progress, items in sequence (added, content, done), and
response.completed, or incomplete, or failed. Events are numbered from 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from omlx.engine.types import FinishReason, TokenLogprob
from omlx.errors import OmlxError
from omlx.server.dialects.openai.choices_encoder import Head
from omlx.server.dialects.openai.responses_tools import (
    ToolName,
    listed_tools,
    result_fields,
    server_item,
)
from omlx.server.http import errors
from omlx.server.http.transport import Json
from omlx.server.request import tooling
from omlx.server.request.content import encode_reasoning
from omlx.server.request.dialect import EventEncoder
from omlx.server.request.stream import ChoiceEvent
from omlx.server.request.usage import context, logprob_entries, receipt, timings, usage, warnings
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
from omlx.tools.tool import WEB, OfferedTool

_STATUS: Final = {
    FinishReason.STOP: "completed",
    FinishReason.LENGTH: "incomplete",
    FinishReason.CANCELLED: "cancelled",
}
_FUNCTION: Final = ("function_call", "fc", "arguments")
"""Type of a call's item, prefix of the item's id, field of the arguments."""
_CUSTOM: Final = ("custom_tool_call", "ctc", "input")
_NO_TOOLS: Final[Mapping[str, ToolName]] = {}
_RUN_HERE: Final = ("mcp_call", "web_search_call")
_APPROVAL: Final = "mcp_approval_request"


class ResponseEncoder(EventEncoder):
    """An answer as a response. `echo`: fields of the request. `tools`: by qualified name.

    `run_here`: server tools by function. `encrypted`: reasoning is also sent in the opaque field
    for the next turn. `prewarms`: the request generates nothing.
    """

    def __init__(
        self,
        head: Head,
        echo: Json,
        *,
        tools: Mapping[str, ToolName] = _NO_TOOLS,
        run_here: Mapping[str, OfferedTool] = MappingProxyType({}),
        encrypted: bool = False,
        prewarms: bool = False,
    ) -> None:
        self._head = head
        self._tools, self._encrypted, self._prewarms = tools, encrypted, prewarms
        self._run_here = run_here
        self.response: Json = {
            "id": head.id,
            "object": "response",
            "created_at": head.created,
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "model": head.model,
            "output": [],
            "usage": None,
            **echo,
            **warnings(head.warnings),
        }
        self._sequence_number = 0
        self._open: Json | None = None
        self._text = ""
        self._logprobs: list[Json] = []

    def start(self) -> list[Json]:
        return [
            self._event(f"response.{name}", response=self._snapshot())
            for name in ("created", "in_progress")
        ]

    def failed(self, error: OmlxError) -> list[Json]:
        body = errors.openai(error)["error"]
        self.response["status"] = "failed"
        self.response["error"] = {name: body[name] for name in ("code", "message", "params")}
        return [self._event("response.failed", response=self._snapshot())]

    def body(self, events: Sequence[ChoiceEvent]) -> Json:
        self.feed(events)
        return self.response

    def _snapshot(self) -> Json:
        return self.response | {"output": list(self.response["output"])}

    def _event(self, kind: str, **fields: Any) -> Json:
        number = self._sequence_number
        self._sequence_number += 1
        return {"type": kind, "sequence_number": number, **fields}

    def _encode(self, choice: int, event: OutputEvent) -> list[Json]:
        entries = self._entries(event.logprobs)
        match event:
            case TextDelta(text=text, drafted=drafted):
                payloads = self._enter("message")
                self._logprobs += entries
                fields = {"delta": text, "logprobs": entries, **_mark(drafted=drafted)}
                return [*payloads, self._part("response.output_text.delta", **fields)]
            case ReasoningDelta(text=text, drafted=drafted):
                payloads = self._enter("reasoning")
                fields = {"delta": text, **_mark(drafted=drafted)}
                return [*payloads, self._part("response.reasoning_text.delta", **fields)]
            case ToolCallStart(id=id, name=name):
                return self._call(id, name)
            case ToolCallArguments(text=text):
                return self._add_arguments(text)
            case ToolCallEnd(complete=complete):
                return self._end_call(complete=complete)
            case ToolsListed(server=server, tools=tools):
                return self._list(server, listed_tools(tools))
            case ToolReturned(result=result):
                if self._open is None:
                    return []
                kind = self._open["type"]
                self._open |= result_fields(kind, result, self._text)
                return self._leave(status="failed" if result.failed else "completed")
            case PromptLogprobs() | HiddenLogprobs():
                return []
            case Finish():
                self._logprobs += entries
                return self._end(event)

    def _enter(self, kind: str) -> list[Json]:
        """Continue an item of `kind`, or end the open item and start a new one."""
        if self._open is not None and self._open["type"] == kind:
            return []
        payloads = self._leave()
        item: Json = {"type": kind, "id": self._id("rs"), "summary": [], "content": []}
        if kind == "message":
            item = {"type": kind, "id": self._id("msg"), "role": "assistant", "content": []}
        added = self._add(item)
        return [*payloads, added, self._part("response.content_part.added", part=self._content())]

    def _call(self, id: str, name: str) -> list[Json]:
        payloads = self._leave()
        if name in self._run_here:
            return [*payloads, *self._call_here(id, self._run_here[name])]
        tool = self._tools.get(name, ToolName(name))
        kind, short, field = _CUSTOM if tool.custom else _FUNCTION
        item = {"type": kind, "id": self._id(short), "call_id": id, "name": tool.name, field: ""}
        if tool.namespace is not None:
            item["namespace"] = tool.namespace
        return [*payloads, self._add(item)]

    def _call_here(self, id: str, tool: OfferedTool) -> list[Json]:
        prefix, fields = server_item(tool, id)
        item = {"id": self._id(prefix), **fields}
        if item["type"] == _APPROVAL:  # a whole item, once the arguments are known
            self._open, self._text = item, ""
            return []
        return [self._add(item), self._item(f"response.{item['type']}.in_progress")]

    def _add_arguments(self, text: str) -> list[Json]:
        self._text += text
        kind = None if self._open is None else self._open["type"]
        if kind in ("function_call", "mcp_call"):
            return [self._item(f"response.{kind}_arguments.delta", delta=text)]
        return []  # of a custom tool, a text is a string within JSON that is not complete

    def _end_call(self, *, complete: bool) -> list[Json]:
        """End a call; items of server tools stay open until the result."""
        item = self._open
        if item is None or not complete or item["type"] not in (*_RUN_HERE, _APPROVAL):
            return self._leave(status="completed" if complete else "incomplete")
        if item["type"] == "web_search_call":
            return [self._item("response.web_search_call.searching")]
        item["arguments"] = self._text
        if item["type"] == _APPROVAL:
            return [self._item("response.output_item.added", item=dict(item)), *self._leave()]
        return [self._item("response.mcp_call_arguments.done", arguments=self._text)]

    def _list(self, server: str, tools: list[Json]) -> list[Json]:
        if server == WEB:  # built in: OpenAI's API does not list it
            return []
        item = {"type": "mcp_list_tools", "id": self._id("mcpl"), "server_label": server}
        payloads = [self._add({**item, "tools": []})]
        payloads.append(self._item("response.mcp_list_tools.in_progress"))
        assert self._open is not None
        self._open["tools"] = tools
        return [*payloads, *self._leave()]

    def _add(self, item: Json) -> Json:
        self._open, self._text, self._logprobs = item | {"status": "in_progress"}, "", []
        return self._item("response.output_item.added", item=dict(self._open))

    def _leave(self, status: str = "completed") -> list[Json]:
        item = self._open
        if item is None:
            return []
        if item["type"] == _APPROVAL and status != "completed":  # not to be approved
            self._open = None
            return []
        payloads = self._complete(item, status)
        item["status"] = status
        payloads.append(self._item("response.output_item.done", item=item))
        self.response["output"].append(item)
        self._open = None
        return payloads

    def _complete(self, item: Json, status: str) -> list[Json]:
        """Complete the item's content, and return the final events of the content."""
        text = self._text
        if item["type"] in (*_RUN_HERE, "mcp_list_tools"):
            if status not in ("completed", "failed"):
                return []
            ended = "completed" if item["type"] == "web_search_call" else status  # has no `failed`
            return [self._item(f"response.{item['type']}.{ended}")]
        if item["type"] == _APPROVAL:
            return []
        if item["type"] == "function_call":
            item["arguments"] = text
            fields = {"arguments": text, "name": item["name"]}
            return [self._item("response.function_call_arguments.done", **fields)]
        if item["type"] == "custom_tool_call":
            item["input"] = _input(text)
            kind = "response.custom_tool_call_input"
            delta = self._item(f"{kind}.delta", delta=item["input"])
            return [delta, self._item(f"{kind}.done", input=item["input"])]
        part = self._content()
        item["content"] = [part]
        if item["type"] == "message":
            fields = {"text": text, "logprobs": part["logprobs"]}
            done = self._part("response.output_text.done", **fields)
        else:
            done = self._part("response.reasoning_text.done", text=text)
            if self._encrypted:
                item["encrypted_content"] = encode_reasoning(text)
        return [done, self._part("response.content_part.done", part=part)]

    def _content(self) -> Json:
        """Return the content part of the open item so far; items have a single part."""
        assert self._open is not None
        if self._open["type"] == "message":
            return {
                "type": "output_text",
                "text": self._text,
                "annotations": [],
                "logprobs": list(self._logprobs),
            }
        return {"type": "reasoning_text", "text": self._text}

    def _item(self, kind: str, **fields: Any) -> Json:
        assert self._open is not None
        place: Json = {"output_index": len(self.response["output"])}
        if "item" not in fields:
            place["item_id"] = self._open["id"]
        return self._event(kind, **place, **fields)

    def _part(self, kind: str, **fields: Any) -> Json:
        self._text += fields.get("delta", "")
        return self._item(kind, content_index=0, **fields)

    def _end(self, finish: Finish) -> list[Json]:
        status = "completed" if self._prewarms else _STATUS[finish.reason]
        complete = status == "completed"
        payloads = self._leave("completed" if complete else "incomplete")
        if status == "incomplete":
            self.response["incomplete_details"] = {"reason": "max_output_tokens"}
        counts = usage([finish])
        self.response |= {
            "status": status,
            "usage": {
                "input_tokens": counts["prompt_tokens"],
                "input_tokens_details": {
                    **counts["prompt_tokens_details"],
                    "cache_write_tokens": 0,
                },
                "output_tokens": counts["completion_tokens"],
                "output_tokens_details": counts["completion_tokens_details"],
                "total_tokens": counts["total_tokens"],
                **context([finish.stats]),
            },
            "timings": timings([finish]),
            **receipt([finish]),
        }
        name = "response.completed" if complete else "response.incomplete"
        return [*payloads, self._event(name, response=self._snapshot())]

    def _id(self, kind: str) -> str:
        # derived from the response's id: a stream and the stored response agree
        return f"{kind}_{self._head.id.partition('_')[2]}_{len(self.response['output'])}"

    def _entries(self, logprobs: Sequence[TokenLogprob]) -> list[Json]:
        if self._head.token_bytes is None:
            return []
        return logprob_entries(logprobs, self._head.token_bytes)


def _mark(*, drafted: bool) -> Json:
    return {"drafted": True} if drafted else {}


def _input(arguments: str) -> str:
    """Return the text argument of a custom tool's call; unchanged for arguments in another form."""
    text = tooling.argument_object(arguments).get("input")
    return text if isinstance(text, str) else arguments
