"""Input items of the Responses API as messages for chat templates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from omlx.errors import Reason
from omlx.server.http.body import Json
from omlx.server.http.errors import field_error
from omlx.server.request import tooling
from omlx.server.request.content import ContentPart, Reading, Typed, decode_reasoning
from omlx.server.request.fields import FUNCTION, Body, Listed, Text, ToolType
from omlx.server.request.tooling import skipped

_INPUT: Final[Json] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}
_DOT: Final = "."
_NAMESPACE: Final = "namespace"
CALLABLE: Final = (FUNCTION, "custom")
"""Types of tools that the model can call."""


class ResponseTool(Body):
    type: ToolType = FUNCTION
    name: Text | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    tools: Listed[ResponseTool] | None = None


@dataclass(frozen=True, slots=True)
class ToolName:
    """A tool as named in calls of responses."""

    name: str
    namespace: str | None = None
    custom: bool = False

    @property
    def qualified(self) -> str:
        """Name shown to the model."""
        if self.namespace is None:
            return self.name
        return f"{self.namespace}{_DOT}{self.name}"


def joined_tools(
    tools: Sequence[ResponseTool], further: Sequence[ResponseTool]
) -> list[ResponseTool]:
    """Return `tools`, then the tools of `further` with new names: items repeat listed tools."""
    names = set(by_qualified_name(tools))
    every = list(tools)
    for tool in further:
        if tool.type == _NAMESPACE:
            inner = [part for part in tool.tools or () if _qualified(part, tool) not in names]
            tool = tool.model_copy(update={"tools": inner})
        elif tool.type not in CALLABLE or names.issuperset(by_qualified_name([tool])):
            continue
        names.update(by_qualified_name([tool]))
        every.append(tool)
    return every


def declared_functions(tools: Sequence[ResponseTool]) -> list[Json]:
    """Return the callable tools as templates expect them."""
    declared = []
    for name, tool in _flat(tools):
        parameters = _INPUT if name.custom else tool.parameters
        declared.append(tooling.function(name.qualified, tool.description, parameters))
    return declared


def strict_names(tools: Sequence[ResponseTool]) -> list[str]:
    return [name.qualified for name, tool in _flat(tools) if tool.strict]


def by_qualified_name(tools: Sequence[ResponseTool]) -> dict[str, ToolName]:
    return {name.qualified: name for name, _ in _flat(tools)}


def skipped_tools(
    tools: Sequence[ResponseTool], *, nested: bool = False, field: str = "tools"
) -> list[Reason]:
    """Return the reasons for tools left out."""
    reasons = []
    for i, tool in enumerate(tools):
        at = f"{field}[{i}]"
        if tool.type == _NAMESPACE and not nested:
            reasons += skipped_tools(tool.tools or (), nested=True, field=f"{at}.tools")
        elif tool.type not in CALLABLE:
            reasons.append(skipped(tool.type, at))
    return reasons


def _qualified(tool: ResponseTool, namespace: ResponseTool) -> str:
    return ToolName(tool.name or "", namespace.name).qualified


def _flat(
    tools: Sequence[ResponseTool], namespace: str | None = None, field: str = "tools"
) -> Iterator[tuple[ToolName, ResponseTool]]:
    """Yield the tools that the model may call. Raises BadRequest for a tool without a name."""
    for i, tool in enumerate(tools):
        at = f"{field}[{i}]"
        is_namespace = tool.type == _NAMESPACE and namespace is None
        if not is_namespace and tool.type not in CALLABLE:
            continue
        if tool.name is None:
            raise field_error("request.missing", f"{at}.name")
        if is_namespace:
            yield from _flat(tool.tools or (), tool.name, f"{at}.tools")
        else:
            yield ToolName(tool.name, namespace, tool.type == "custom"), tool


_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_BETWEEN = "\n\n"


class Item(Typed):
    """An item of any type, which decides the fields present. Messages may omit the type."""

    READ = frozenset(
        {
            *("message", "reasoning", "function_call", "function_call_output"),
            *("custom_tool_call", "custom_tool_call_output", "item_reference"),
            *("additional_tools", "tool_search_output"),
        }
    )

    type: str = "message"
    id: str | None = None
    role: str | None = None
    content: str | Listed[ContentPart] | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | dict[str, Any] | None = None
    input: str | None = None
    output: str | Listed[ContentPart] | None = None
    encrypted_content: str | None = None
    summary: Listed[ContentPart] | None = None
    tools: Listed[ResponseTool] | None = None

    def as_output(self) -> Json:
        """Return the item as clients read it back: a message's content is a list of parts."""
        output = self.model_dump(exclude_none=True)
        if self.type == "message" and isinstance(self.content, str):
            part: Json = {"type": "input_text"}
            if self.role == "assistant":
                part = {"type": "output_text", "annotations": []}
            output["content"] = [part | {"text": self.content}]
        return output


class Conversation:
    """Builds messages from items. Successive output of the model becomes one message.

    `before`: the messages of the continued conversation. `reading`: warnings for omitted items.
    `tools`: tools added by items, by place.
    """

    def __init__(self, before: Sequence[Json] = ()) -> None:
        self.messages = [dict(message) for message in before]
        self.reading = Reading()
        self.tools: dict[str, Sequence[ResponseTool]] = {}
        self._called: set[str] = set()
        self._open: dict[str, None] = {}  # calls without a result, in order
        self._elsewhere: set[str] = set()  # calls that were left out
        for message in before:
            for call in message.get("tool_calls", ()):
                self._note_call(call["id"])
            self._open.pop(message.get("tool_call_id", ""), None)
        self._new_turn = True

    def add(self, item: Item, at: str) -> None:
        """Append an item; `at` is its place, for errors. Raises BadRequest for results without a
        call.
        """
        match item.type:
            case "message":
                self._message(item, at)
            case "reasoning":
                shown = self.reading.join_texts(item.content or "", f"{at}.content")
                reasoning = decode_reasoning(shown, item.encrypted_content)
                self._add_output("reasoning_content", reasoning)
            case "function_call" | "custom_tool_call":
                self._call(item, at)
            case "function_call_output" | "custom_tool_call_output":
                self._result(item, at)
            case "additional_tools" | "tool_search_output":
                self.tools[f"{at}.tools"] = item.tools or ()
            case _ if item.role in _ROLES and item.content:
                self._message(item, at)
            case kind:
                self._elsewhere |= {id for id in (item.call_id, item.id) if id}
                self.reading.leave_out(at, kind)

    def _message(self, item: Item, at: str) -> None:
        role = _ROLES.get(item.role or "")
        if role is None:
            raise field_error("request.missing", f"{at}.role")
        if item.content is None:
            raise field_error("request.missing", f"{at}.content")
        if role == "user":
            content = self.reading.join_parts(item.content, f"{at}.content")
            self.messages.append({"role": role, "content": content})
            self._new_turn = True
            return
        answered = role == "assistant"
        text = self.reading.join_texts(item.content, f"{at}.content", answered=answered)
        if answered:
            self._add_output("content", text)
            return
        self._new_turn = True
        leading = all(message["role"] == "system" for message in self.messages)
        if self.messages and leading:
            text = self.messages.pop()["content"] + _BETWEEN + text
        self.messages.append({"role": role, "content": text})

    def _add_output(self, name: str, text: str) -> None:
        """Append to the model's message.

        Reasoning starts a new message unless only reasoning came before; a text after a text starts
        a new message unless a call is between them.
        """
        last = self._assistant()
        spoken, called = bool(last["content"]), "tool_calls" in last
        is_reasoning = name == "reasoning_content"
        if (spoken and not called) or (called and is_reasoning):
            self._new_turn = True
            last = self._assistant()
        if text:
            last[name] = last.get(name, "") + text

    def _call(self, item: Item, at: str) -> None:
        if not item.name:
            raise field_error("request.missing", f"{at}.name")
        arguments: str | dict[str, Any] = item.arguments or ""
        if item.type == "custom_tool_call":
            arguments = {"input": item.input or ""}
        id = item.call_id or item.id or f"call_{len(self._called)}"
        self._note_call(id)
        name = ToolName(item.name, item.namespace).qualified
        self._assistant().setdefault("tool_calls", []).append(tooling.call(id, name, arguments))

    def _note_call(self, id: str) -> None:
        self._called.add(id)
        self._open[id] = None

    def _result(self, item: Item, at: str) -> None:
        """Append a result; without an id, that of the first open call."""
        id = item.call_id or next(iter(self._open), None)
        if id is None:
            raise field_error("request.missing", f"{at}.call_id")
        if id in self._elsewhere - self._called:
            self.reading.leave_out(at, item.type)
            return
        if id not in self._called:
            raise field_error("tools.no_call", at, id=id)
        self._open.pop(id, None)
        output = self.reading.join_parts(item.output or "", f"{at}.output", result=True)
        self.messages.append({"role": "tool", "tool_call_id": id, "content": output})
        self._new_turn = True

    def _assistant(self) -> Json:
        if self._new_turn or not self.messages:
            self.messages.append({"role": "assistant", "content": ""})
            self._new_turn = False
        return self.messages[-1]
