"""The Responses API, outwards: events to a response or to the events of a stream. Pure; no I/O.

A stream is: response.created, response.in_progress, then items one after another (added, their content, done), then
response.completed, or incomplete, or failed. Every event has a number, counted from 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from omlx.engine.types import FinishReason, TokenLogprob
from omlx.errors import OmlxError
from omlx.server import errors, opaque_reasoning, tooling
from omlx.server.dialect import ChoiceEvent, Json
from omlx.server.openai.chat.encoder import logprob_entries
from omlx.server.openai.head import Head
from omlx.server.openai.responses.tools import Called
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

_STATUS = {
    FinishReason.STOP: "completed",
    FinishReason.LENGTH: "incomplete",
    FinishReason.CANCELLED: "cancelled",
}
_FUNCTION = ("function_call", "fc", "arguments")
_CUSTOM = ("custom_tool_call", "ctc", "input")
_NO_TOOLS: Mapping[str, Called] = {}


class ResponseEncoder:
    """`echo` holds the fields that repeat the request. `tools` are by the name that the model knows. `encrypted`:
    reasoning also comes in the field that clients bring back unread."""

    def __init__(
        self,
        head: Head,
        echo: Json,
        *,
        tools: Mapping[str, Called] = _NO_TOOLS,
        encrypted: bool = False,
    ) -> None:
        self._head = head
        self._tools, self._encrypted = tools, encrypted
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
        }
        self._told = 0
        self._open: Json | None = None
        self._text = ""
        self._logprobs: list[Json] = []

    def start(self) -> list[Json]:
        return [
            self._event(f"response.{name}", response=self._snapshot())
            for name in ("created", "in_progress")
        ]

    def feed(self, events: Sequence[ChoiceEvent]) -> list[Json]:
        return [told for each in events for told in self._encode(each.event)]

    def failed(self, error: OmlxError) -> list[Json]:
        told = errors.openai(error)["error"]
        self.response |= {
            "status": "failed",
            "error": {"code": told["code"], "message": told["message"]},
        }
        return [self._event("response.failed", response=self._snapshot())]

    def body(self, events: Sequence[ChoiceEvent]) -> Json:
        self.feed(events)
        return self.response

    def _snapshot(self) -> Json:
        return self.response | {"output": list(self.response["output"])}

    def _event(self, kind: str, **fields: Any) -> Json:
        number, self._told = self._told, self._told + 1
        return {"type": kind, "sequence_number": number, **fields}

    def _encode(self, event: OutputEvent) -> list[Json]:
        entries = self._entries(event.logprobs)
        match event:
            case TextDelta(text=text):
                entered = self._enter("message")
                self._logprobs += entries
                return [
                    *entered,
                    self._part("response.output_text.delta", delta=text, logprobs=entries),
                ]
            case ReasoningDelta(text=text):
                return [
                    *self._enter("reasoning"),
                    self._part("response.reasoning_text.delta", delta=text),
                ]
            case ToolCallStart(id=id, name=name):
                return self._call(id, name)
            case ToolCallArguments(text=text):
                self._text += text
                if self._open is not None and self._open["type"] == "custom_tool_call":
                    return []  # the text is inside of JSON, which ends later
                return [self._item("response.function_call_arguments.delta", delta=text)]
            case ToolCallEnd(complete=complete):
                return self._leave("completed" if complete else "incomplete")
            case PromptLogprobs() | HiddenLogprobs():
                return []
            case Finish():
                self._logprobs += entries
                return self._end(event)

    def _enter(self, kind: str) -> list[Json]:
        """Go on with an item of this kind, or end the open one and begin another."""
        if self._open is not None and self._open["type"] == kind:
            return []
        left = self._leave("completed")
        fields: Json = (
            {"role": "assistant", "content": []}
            if kind == "message"
            else {"summary": [], "content": []}
        )
        added = self._add(
            {"type": kind, "id": self._id("msg" if kind == "message" else "rs"), **fields}
        )
        return [*left, added, self._part("response.content_part.added", part=self._content())]

    def _call(self, id: str, name: str) -> list[Json]:
        left = self._leave("completed")
        tool = self._tools.get(name, Called(name))
        kind, short, field = _CUSTOM if tool.custom else _FUNCTION
        item = {"type": kind, "id": self._id(short), "call_id": id, "name": tool.name, field: ""}
        if tool.namespace is not None:
            item["namespace"] = tool.namespace
        return [*left, self._add(item)]

    def _add(self, item: Json) -> Json:
        self._open, self._text, self._logprobs = item | {"status": "in_progress"}, "", []
        return self._item("response.output_item.added", item=dict(self._open))

    def _leave(self, status: str) -> list[Json]:
        """End the open item, if there is one."""
        item = self._open
        if item is None:
            return []
        told = self._closed(item)
        item["status"] = status
        told.append(self._item("response.output_item.done", item=item))
        self.response["output"].append(item)
        self._open = None
        return told

    def _closed(self, item: Json) -> list[Json]:
        """Fill in what the item has become, and say so."""
        match item["type"]:
            case "function_call":
                item["arguments"] = self._text
                return [
                    self._item(
                        "response.function_call_arguments.done",
                        arguments=self._text,
                        name=item["name"],
                    )
                ]
            case "custom_tool_call":
                item["input"] = _input(self._text)
                delta = self._item("response.custom_tool_call_input.delta", delta=item["input"])
                return [
                    delta,
                    self._item("response.custom_tool_call_input.done", input=item["input"]),
                ]
        part = self._content()
        item["content"] = [part]
        done = {"text": self._text}
        if item["type"] == "message":
            done["logprobs"] = part["logprobs"]
        elif self._encrypted:
            item["encrypted_content"] = opaque_reasoning.encode(self._text)
        name = (
            "response.output_text.done"
            if item["type"] == "message"
            else "response.reasoning_text.done"
        )
        return [self._part(name, **done), self._part("response.content_part.done", part=part)]

    def _content(self) -> Json:
        """The one part of the open item, as far as it has come."""
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
        status = _STATUS[finish.reason]
        told = self._leave("completed" if status == "completed" else "incomplete")
        counts = usage([finish])
        self.response |= {
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"}
            if status == "incomplete"
            else None,
            "usage": {
                "input_tokens": counts["prompt_tokens"],
                "input_tokens_details": {
                    **counts["prompt_tokens_details"],
                    "cache_write_tokens": 0,
                },
                "output_tokens": counts["completion_tokens"],
                "output_tokens_details": counts["completion_tokens_details"],
                "total_tokens": counts["total_tokens"],
            },
            "timings": timings([finish]),
        }
        name = "response.completed" if status == "completed" else "response.incomplete"
        return [*told, self._event(name, response=self._snapshot())]

    def _id(self, kind: str) -> str:
        """Ids of items follow from the response's own, so that they are the same wherever they are made."""
        return f"{kind}_{self._head.id.partition('_')[2]}_{len(self.response['output'])}"

    def _entries(self, logprobs: Sequence[TokenLogprob]) -> list[Json]:
        return (
            logprob_entries(logprobs, self._head.token_bytes)
            if self._head.token_bytes is not None
            else []
        )


def _input(arguments: str) -> str:
    """The text that a custom tool was called with; what is no such call goes through as it is."""
    known = tooling.written(arguments)
    found = known.get("input") if isinstance(known, dict) else None
    return found if isinstance(found, str) else arguments
