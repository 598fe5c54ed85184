"""Input items of the Responses API as messages for chat templates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omlx.server.dialects.openai.responses_tools import ResponseTool, ToolName
from omlx.server.http.errors import field_error
from omlx.server.http.transport import Json
from omlx.server.request import tooling
from omlx.server.request.content import ContentPart, ContentReader, Typed, decode_reasoning
from omlx.server.request.fields import Listed
from omlx.tools.tool import SEARCH, WEB, Tool, ToolResult, WebPage

_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_BETWEEN = "\n\n"
_PAGE = ("title", "url", "excerpt")
REFUSED = "The user refused this call."


class Item(Typed):
    """An item of any type, which decides the fields present. Messages may omit the type."""

    READ = frozenset(
        {
            *("message", "reasoning", "function_call", "function_call_output"),
            *("custom_tool_call", "custom_tool_call_output", "item_reference"),
            *("additional_tools", "tool_search_output"),
            *("mcp_approval_request", "mcp_approval_response"),
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
    server_label: str | None = None
    approval_request_id: str | None = None
    approve: bool | None = None
    reason: str | None = None
    error: Any = None
    action: dict[str, Any] | None = None
    results: Listed[dict[str, Any]] | None = None

    @property
    def server_tool(self) -> str | None:
        """Function of a server tool's item."""
        if self.type == "web_search_call":
            return f"{WEB}{Tool.BETWEEN}{SEARCH}" if self.results is not None else None
        return f"{self.server_label}{Tool.BETWEEN}{self.name}" if self.server_label else None

    @property
    def server_result(self) -> str | None:
        """Text of a server tool's result; None without a result."""
        if self.results is not None:
            pages = ({name: str(page.get(name, "")) for name in _PAGE} for page in self.results)
            return ToolResult.of(tuple(WebPage(**page) for page in pages)).text
        if isinstance(self.error, dict):
            content = self.error.get("content")
            parts = content if isinstance(content, list) else [self.error]
            texts = (part.get("text") or part.get("message") for part in parts)
            return "\n".join(str(text) for text in texts if text)
        return self.output if isinstance(self.output, str) else None

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
    `tools`: tools added by items, by place. `approved`: calls to make now, whose results are empty.
    """

    def __init__(self, before: Sequence[Json] = ()) -> None:
        self.messages = [dict(message) for message in before]
        self.reading = ContentReader()
        self.tools: dict[str, Sequence[ResponseTool]] = {}
        self.approved: set[str] = set()
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
            case "mcp_list_tools":
                pass  # the tools of the request are listed again
            case "mcp_approval_request":
                self._call(item, at)
            case "mcp_approval_response":
                self._decide(item, at)
            case "mcp_call" | "web_search_call" if item.server_result is not None:
                self._ran(item, item.server_tool or "", item.server_result)
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
        name = item.server_tool or ToolName(item.name, item.namespace).qualified
        self._assistant().setdefault("tool_calls", []).append(tooling.call(id, name, arguments))

    def _decide(self, item: Item, at: str) -> None:
        """Take an answer to an approval request. Raises BadRequest for an unknown request."""
        id = item.approval_request_id or ""
        if id not in self._open:
            raise field_error("tools.no_call", at, id=id)
        text = "" if item.approve else f"{REFUSED} {item.reason or ''}".strip()
        if item.approve:
            self.approved.add(id)
        self._returned(id, text)

    def _ran(self, item: Item, name: str, text: str) -> None:
        """Append a server tool's call and result; of approved calls, complete the result."""
        id = item.approval_request_id or item.id or f"call_{len(self._called)}"
        self.approved.discard(id)
        for message in self.messages:
            if message.get("tool_call_id") == id:
                message["content"] = text
                return
        if id not in self._called:
            query = {"query": (item.action or {}).get("query", "")}
            arguments = query if item.results is not None else item.arguments or ""
            self._assistant().setdefault("tool_calls", []).append(tooling.call(id, name, arguments))
            self._note_call(id)
        self._returned(id, text)

    def _returned(self, id: str, content: str | list[Json]) -> None:
        self._open.pop(id, None)
        self.messages.append({"role": "tool", "tool_call_id": id, "content": content})
        self._new_turn = True

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
        output = self.reading.join_parts(item.output or "", f"{at}.output", result=True)
        self._returned(id, output)

    def _assistant(self) -> Json:
        if self._new_turn or not self.messages:
            self.messages.append({"role": "assistant", "content": ""})
            self._new_turn = False
        return self.messages[-1]
