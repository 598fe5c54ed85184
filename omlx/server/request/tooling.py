"""Tools and past tool calls of any dialect, as templates expect them. Checks limits."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Final

from pydantic_core import from_json

from omlx.errors import BadRequest, Reason
from omlx.records import RequestStats
from omlx.server.http.errors import field_error
from omlx.server.http.transport import Json
from omlx.server.request.fields import Body, without_effect
from omlx.text.events import (
    Finish,
    OutputEvent,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallStart,
)
from omlx.text.tools import ToolUse, without_nulls

_NAME: Final = re.compile(r"[a-zA-Z0-9_.:/-]{1,128}")
_ESCAPE: Final = re.compile(
    r"\\(?:"
    r"u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    r"|(?P<lone>u[dD][89a-fA-F][0-9a-fA-F]{2})"
    r"|.)",
    re.DOTALL,
)
"""A pair of surrogates, a lone one, or any other escape of JSON."""
MAX_TOOLS: Final = 1024
MAX_TOOL_BYTES: Final = 4 << 20
FORCED: Final = ("required", "any")
"""Choices of tools that require a call."""


def function(name: str, description: str | None, parameters: Mapping[str, Any] | None) -> Json:
    """A function as templates expect it; without `parameters` it takes no arguments."""
    declared: Json = {"name": name, "description": description or ""}
    declared["parameters"] = without_nulls(parameters or {"type": "object", "properties": {}})
    return {"type": "function", "function": declared}


def tool_use(
    functions: Sequence[Json],
    mode: str | None = None,
    *,
    name: str | None = None,
    allowed: Iterable[str] | None = None,
    single: bool = False,
    strict: Iterable[str] = (),
) -> ToolUse | None:
    """Return how the answer may call functions. None if it may not: the template then lists none.

    The template lists `allowed` functions only. `name` is the function that must be called; a
    `mode` in `FORCED` requires any call, `none` forbids calls. `single` allows one call, `strict`
    names functions whose arguments must match their schema.

    Raises BadRequest for too many or too large functions, duplicate names, and for a choice that is
    not a function.
    """
    names = _checked_names(functions)
    offered: Collection[str] = names if allowed is None else dict.fromkeys(allowed)
    for choice in offered if name is None else (name,):
        if choice not in names:
            raise BadRequest("tools.not_there", param="tool_choice", name=choice)
    functions = [tool for tool in functions if tool["function"]["name"] in offered]
    forced = name is not None or mode in FORCED
    if forced and not functions:
        raise BadRequest("tools.none", param="tool_choice")
    if mode == "none" or not functions:
        return None
    return ToolUse(
        tuple(functions),
        forced,
        name,
        single or name is not None,
        frozenset(strict).intersection(offered),
    )


def _checked_names(functions: Sequence[Json]) -> Collection[str]:
    if len(functions) > MAX_TOOLS:
        raise field_error("request.too_many", "tools", count=len(functions), limit=MAX_TOOLS)
    if (size := len(json.dumps(functions))) > MAX_TOOL_BYTES:
        raise field_error("request.too_large", "tools", size=size, limit=MAX_TOOL_BYTES)
    names = Counter(tool["function"]["name"] for tool in functions)
    for name in names:
        if not _NAME.fullmatch(name):
            raise BadRequest("tools.name", param="tools", name=name[:200])
    for name, count in names.items():
        if count > 1:
            raise BadRequest("tools.twice", param="tools", name=name)
    return names


def call(id: str, name: str, arguments: str | Mapping[str, Any]) -> Json:
    """A past call as templates expect it: arguments as an object if they parse as one, else as
    text.

    Arguments nested deeper than a body may be, which no template could render, stay text.
    """
    value: object = arguments
    if isinstance(arguments, str):
        with suppress(ValueError):
            parsed = from_json(arguments) if arguments.strip() else {}
            if isinstance(parsed, dict):
                value = parsed
    return {"id": id, "type": "function", "function": {"name": name, "arguments": value}}


@dataclass(slots=True)
class AnswerMessage:
    """A choice's message as clients send it back, collected from its events."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: dict[int, ToolCallStart] = field(default_factory=dict)
    arguments: dict[int, list[str]] = field(default_factory=dict)
    stats: RequestStats | None = None

    def add(self, event: OutputEvent) -> None:
        match event:
            case TextDelta(text=text):
                self.text.append(text)
            case ReasoningDelta(text=text):
                self.reasoning.append(text)
            case ToolCallStart(index=index):
                self.calls[index], self.arguments[index] = event, []
            case ToolCallArguments(index=index, text=text):
                self.arguments[index].append(text)
            case Finish(stats=stats):
                self.stats = stats

    @property
    def filled(self) -> float:
        """Share of the context that the conversation fills; 0 if unknown."""
        stats = self.stats
        if stats is None or stats.context_left is None:
            return 0.0
        return 1 - stats.context_left / stats.context_n

    def message(self, call_id: Callable[[str], str] = str) -> Json:
        """Return the message with its calls, whose ids `call_id` maps, without reasoning."""
        calls = [
            call(call_id(start.id), start.name, "".join(self.arguments[index]))
            for index, start in sorted(self.calls.items())
        ]
        message = {"role": "assistant", "content": "".join(self.text)}
        return message | ({"tool_calls": calls} if calls else {})


def parse_arguments(arguments: str) -> Json | str:
    """Parse the arguments that a model wrote, complete or not; text that is no object, or is nested
    too deep, as it is.

    null and U+FFFD replace values that JSON and UTF-8 cannot hold.
    """
    text = _ESCAPE.sub(lambda escape: r"\ufffd" if escape["lone"] else escape[0], arguments)
    try:
        parsed = from_json(text.strip() or "{}", allow_partial="trailing-strings")
    except ValueError:
        return arguments
    return _finite(parsed) if isinstance(parsed, dict) else arguments


def argument_object(arguments: str) -> Json:
    """Parse arguments for clients that expect an object: other text becomes a field of one."""
    parsed = parse_arguments(arguments)
    return parsed if isinstance(parsed, dict) else {"arguments": parsed}


def _finite(value: Any) -> Any:
    match value:
        case dict():
            return {name: _finite(item) for name, item in value.items()}
        case list():
            return [_finite(item) for item in value]
        case float() if not isfinite(value):
            return None
    return value


def with_names(messages: Sequence[Json]) -> list[Json]:
    """Add to each tool result the name of the function that was called, which some templates
    repeat."""
    names: dict[str, str] = {}
    for message in messages:
        names |= {call["id"]: call["function"]["name"] for call in message.get("tool_calls", ())}
    named = []
    for message in messages:
        if message.get("tool_call_id") in names:
            message = {"name": names[message["tool_call_id"]]} | message
        named.append(message)
    return named


_AT_PROVIDER: Final = (
    "web_search",
    "web_fetch",
    "file_search",
    "code_interpreter",
    "code_execution",
    "image_generation",
    "mcp",
    "tool_search",
    "advisor",
)
"""Beginnings of the types of tools that run on OpenAI's or Anthropic's servers."""
_AT_CLIENT: Final = (
    "local_shell",
    "shell",
    "apply_patch",
    "computer",
    "bash",
    "text_editor",
    "memory",
    "custom",
)
"""Beginnings of the types that run at the client, with calls in a form of their own."""


def skipped(kind: str, field: str) -> Reason:
    """Return the warning about a tool of type `kind`; `field` is its place in the request."""
    code = "tools.skipped.unknown"
    if kind.startswith(_AT_PROVIDER):
        code = "tools.skipped.provider"
    elif kind.startswith(_AT_CLIENT):
        code = "tools.skipped.client"
    return Reason(code, {"field": field, "type": kind[:100]})


def unused_fields(tool: Body, names: Iterable[str], field: str) -> Sequence[Reason]:
    """Warn of fields of a tool without effect here."""
    given = tool.model_extra or {}
    return without_effect([f"{field}.{name}" for name in names if given.get(name)])
