"""Tools and past tool calls of any dialect, as templates expect them. Checks limits."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from math import isfinite
from typing import Any, Final

from pydantic_core import from_json

from omlx.errors import BadRequest, Reason
from omlx.server.http.errors import field_error
from omlx.server.http.transport import Json
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


def function(name: str, description: str | None, parameters: Mapping[str, Any] | None) -> Json:
    """A function as templates expect it; without `parameters` it takes no arguments."""
    declared: Json = {"name": name, "description": description or ""}
    declared["parameters"] = without_nulls(parameters or {"type": "object", "properties": {}})
    return {"type": "function", "function": declared}


def tool_use(
    functions: Sequence[Json],
    *,
    none: bool = False,
    forced: bool = False,
    name: str | None = None,
    allowed: Iterable[str] | None = None,
    single: bool = False,
    strict: Iterable[str] = (),
) -> ToolUse | None:
    """How the answer may call functions. None if it may not: then the template does not list them.

    The template lists `allowed` functions only. `name` is the function that must be called,
    `forced` requires any call, `single` allows one call, `strict` names functions whose arguments
    must match their schema.

    Raises BadRequest for too many or too large functions, duplicate names, and for a choice that is
    not a function.
    """
    names = _checked_names(functions)
    offered: Collection[str] = names if allowed is None else dict.fromkeys(allowed)
    for choice in offered if name is None else (name,):
        if choice not in names:
            raise BadRequest("tools.not_there", param="tool_choice", name=choice)
    functions = [tool for tool in functions if tool["function"]["name"] in offered]
    if forced and not functions:
        raise BadRequest("tools.none", param="tool_choice")
    if none or not functions:
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


def parse_arguments(arguments: str) -> Json | str:
    """Parse the arguments that a model wrote, complete or not; text that is no object, or is nested
    too deep, as it is.

    null and U+FFFD replace values that JSON and UTF-8 cannot hold.
    """
    text = _ESCAPE.sub(_replace_lone_surrogate, arguments)
    try:
        parsed = from_json(text.strip() or "{}", allow_partial="trailing-strings")
    except ValueError:
        return arguments
    return _finite(parsed) if isinstance(parsed, dict) else arguments


def argument_object(arguments: str) -> Json:
    """Parse arguments for clients that expect an object: other text becomes a field of one."""
    parsed = parse_arguments(arguments)
    return parsed if isinstance(parsed, dict) else {"arguments": parsed}


def _replace_lone_surrogate(escape: re.Match[str]) -> str:
    if escape["lone"]:
        return r"\ufffd"
    return escape[0]


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


def without_effect(given: Mapping[str, Any], names: Iterable[str], field: str) -> list[Reason]:
    """Warn of fields of a tool without effect here."""
    used = [f"{field}.{name}" for name in names if given.get(name)]
    if not used:
        return []
    return [Reason("request.without_effect", {"fields": ", ".join(used), "count": len(used)})]
