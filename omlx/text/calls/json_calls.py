"""Calls as JSON objects: `{"name": "look", "arguments": {"at": "x"}}`, or a list of them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from omlx.text.calls.format import NAME, Tools
from omlx.text.calls.json_repair import repaired
from omlx.text.calls.values import is_function, parse_json, properties

_STRING: Final = r'"(?:[^"\\]|\\.)*"'
_VALUE: Final = (
    rf'(?:{_STRING}|[\w.+-]+|(?P<nested>[\[{{](?:{_STRING}|[^"\[\]{{}}]|(?&nested))*[\]}}]))'
)
_MEMBERS: Final = rf"(?:\s*,\s*{_STRING}\s*:\s*{_VALUE})*"

CLOSES: Final = rf"{_MEMBERS}\s*\}}[\s}}\]]*(?:```)?"
"""Pattern after the arguments: further members of the object around them, which are ignored, and
the closing brackets.
"""

BEGINS: Final = (
    r'\s*\[?\s*\{\s*"(?:name|tool_name|function|type|id|arguments|parameters)"\s*:\s*["{]'
)
"""Pattern of how a call that is a JSON object begins, or a list of such calls."""

_NAME_KEYS: Final = ("name", "tool_name", "function")
_ARGUMENT_KEYS: Final = ("arguments", "parameters", "args")


def head(name: str = "name", arguments: str = "arguments|parameters", members: str = "") -> str:
    """Return the pattern of a call up to its arguments, where the name comes first.

    `name` and `arguments` are patterns of the keys; `members` is a pattern of what may precede
    the name.
    """
    return (
        rf'\s*(?:```\w*\s*)?\[?\s*\{{\s*{members}"(?:{name})"\s*:\s*"{NAME}"\s*,\s*'
        rf'"(?:{arguments})"\s*:\s*(?=\{{)'
    )


def read(text: str, tools: Tools) -> list[dict[str, Any]]:
    """Parse a call or a list of calls; a call without arguments is one if its function is known.

    Raises ValueError.
    """
    parsed = parse_json(repaired(text.strip()))
    return [_call(call, tools) for call in (parsed if isinstance(parsed, list) else [parsed])]


def _call(call: Any, tools: Tools) -> dict[str, Any]:
    if not isinstance(call, Mapping):
        raise ValueError("a call is an object")
    if isinstance(call.get("function"), Mapping):
        call = {**call, **call["function"]}
    name = next((call[key] for key in _NAME_KEYS if isinstance(call.get(key), str)), None)
    if name is None:
        raise ValueError("a call has a name")
    arguments = next((call[key] for key in _ARGUMENT_KEYS if call.get(key) is not None), None)
    if isinstance(arguments, str):
        with suppress(ValueError):
            arguments = parse_json(repaired(arguments.strip()))
    if arguments is None and is_function(tools, name):
        arguments = _unnamed(call, name, tools)
    if not isinstance(arguments, dict):
        raise ValueError("arguments are an object")
    return {"name": name, "arguments": arguments, "id": call.get("id")}


def _unnamed(call: Mapping[str, Any], name: str, tools: Tools) -> Any:
    """Return the arguments of a call that has them under another key, or as members of its own;
    None if something else is there.
    """
    known = (*_NAME_KEYS, *_ARGUMENT_KEYS, "id", "type", "index", "tool_call_id")
    others = {key: value for key, value in call.items() if key not in known}
    objects = [value for value in others.values() if isinstance(value, dict)]
    if len(objects) == len(others) == 1:
        return objects[0]
    return others if others.keys() <= set(properties(tools, name)) else None
