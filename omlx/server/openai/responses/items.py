"""Input items of the Responses API, and the messages that templates make of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omlx.errors import BadRequest
from omlx.server import opaque_reasoning, tooling
from omlx.server.dialect import Json
from omlx.server.fields import Body, ContentPart, Listed, joined
from omlx.server.openai.responses.tools import Called

_TEXTS = ("input_text", "output_text", "text", "refusal", "reasoning_text")
_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_BETWEEN = "\n\n"


class Item(Body):
    """An item of any type; which fields it has depends on the type. A message may leave its type out."""

    type: str = "message"
    id: str | None = None
    role: str | None = None
    content: str | Listed[ContentPart] | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: str | Listed[ContentPart] | None = None
    encrypted_content: str | None = None
    summary: Listed[ContentPart] | None = None

    def as_output(self) -> Json:
        """As clients read it back: the content of a message is a list of parts."""
        told = self.model_dump(exclude_none=True)
        if self.type == "message" and isinstance(self.content, str):
            kind = (
                {"type": "output_text", "annotations": []}
                if self.role == "assistant"
                else {"type": "input_text"}
            )
            told["content"] = [kind | {"text": self.content}]
        return told


class Conversation:
    """Builds messages out of items. What the model said between two turns of others is one message.

    `before` are the messages that an earlier response left.
    """

    def __init__(self, before: Sequence[Json] = ()) -> None:
        self.messages = [dict(message) for message in before]
        self._called = {call["id"] for message in before for call in message.get("tool_calls", ())}
        self._fresh = True

    def add(self, item: Item, at: str) -> None:
        """Raises BadRequest for items that this server does not have, and for results of calls nobody made."""
        match item.type:
            case "message":
                self._message(item, at)
            case "reasoning":
                told = joined(item.content or "", f"{at}.content", _TEXTS)
                self._said(
                    "reasoning_content", opaque_reasoning.decode(told, item.encrypted_content)
                )
            case "function_call" | "custom_tool_call":
                self._call(item, at)
            case "function_call_output" | "custom_tool_call_output":
                self._result(item, at)
            case _:
                raise BadRequest("request.item", param=at, field=at, type=item.type)

    def _message(self, item: Item, at: str) -> None:
        role = _ROLES.get(item.role or "")
        if role is None or item.content is None:
            missing = f"{at}.{'role' if role is None else 'content'}"
            raise BadRequest("request.missing", param=missing, field=missing)
        text = joined(item.content, f"{at}.content", _TEXTS)
        if role == "assistant":
            self._said("content", text)
            return
        self._fresh = True
        if (
            role == "system"
            and self.messages
            and all(each["role"] == "system" for each in self.messages)
        ):
            self.messages[-1] = {
                "role": role,
                "content": self.messages[-1]["content"] + _BETWEEN + text,
            }
        else:
            self.messages.append({"role": role, "content": text})

    def _said(self, name: str, text: str) -> None:
        """Reasoning begins a message of its own, unless nothing was said since the last one began."""
        last = self._assistant()
        if name == "reasoning_content" and (last["content"] or "tool_calls" in last):
            self._fresh = True
            last = self._assistant()
        if text:
            last[name] = last.get(name, "") + text

    def _call(self, item: Item, at: str) -> None:
        if not item.call_id or not item.name:
            missing = f"{at}.{'name' if item.call_id else 'call_id'}"
            raise BadRequest("request.missing", param=missing, field=missing)
        arguments: str | dict[str, Any] = item.arguments or ""
        if item.type == "custom_tool_call":
            arguments = {"input": item.input or ""}
        self._called.add(item.call_id)
        name = Called(item.name, item.namespace).told
        self._assistant().setdefault("tool_calls", []).append(
            tooling.call(item.call_id, name, arguments)
        )

    def _result(self, item: Item, at: str) -> None:
        if item.call_id not in self._called:
            raise BadRequest("tools.no_call", param=at, field=at, id=str(item.call_id))
        output = joined(item.output or "", f"{at}.output", _TEXTS)
        self.messages.append({"role": "tool", "tool_call_id": item.call_id, "content": output})
        self._fresh = True

    def _assistant(self) -> Json:
        if self._fresh or not self.messages:
            self.messages.append({"role": "assistant", "content": ""})
            self._fresh = False
        return self.messages[-1]
