"""Tools of any dialect as the templates know them, and past calls as messages. Limits are checked here."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from math import isfinite
from typing import Any, Final

from pydantic_core import from_json

from omlx.errors import BadRequest
from omlx.server.dialect import Json
from omlx.text.tools import ToolUse

_NAME: Final = re.compile(r"[a-zA-Z0-9_.:/-]{1,128}")
_ESCAPED: Final = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<lone>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.S,
)
"""A pair of surrogates, one alone, or anything else that is escaped in JSON."""
MAX_TOOLS: Final = 1024
MAX_TOOL_BYTES: Final = 4 << 20
MAX_MESSAGES: Final = 100_000


def function(name: str, description: str | None, parameters: Mapping[str, Any] | None) -> Json:
    """A function without a schema takes no arguments; templates want to see that."""
    told: Json = {"name": name}
    if description is not None:
        told["description"] = description
    told["parameters"] = dict(parameters) if parameters else {"type": "object", "properties": {}}
    return {"type": "function", "function": told}


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
    """None where nothing may be called: then the model is not told of the functions either, nor ever of those that are
    not among the `allowed`.

    Raises BadRequest for too many or too large functions, for two of one name, and for a choice that is not there.
    """
    if len(functions) > MAX_TOOLS:
        raise BadRequest(
            "request.too_many", param="tools", field="tools", count=len(functions), limit=MAX_TOOLS
        )
    if (size := len(json.dumps(functions))) > MAX_TOOL_BYTES:
        raise BadRequest(
            "request.too_large", param="tools", field="tools", size=size, limit=MAX_TOOL_BYTES
        )
    if bad := [each for each in functions if not _NAME.fullmatch(each["function"]["name"])]:
        raise BadRequest("tools.name", param="tools", name=bad[0]["function"]["name"][:200])
    names = Counter(each["function"]["name"] for each in functions)
    if twice := [each for each, count in names.items() if count > 1]:
        raise BadRequest("tools.twice", param="tools", name=twice[0])
    told: Collection[str] = names if allowed is None else dict.fromkeys(allowed)
    if missing := [each for each in (told if name is None else (name,)) if each not in names]:
        raise BadRequest("tools.not_there", param="tool_choice", name=missing[0])
    functions = [each for each in functions if each["function"]["name"] in told]
    if forced and not functions:
        raise BadRequest("tools.none", param="tool_choice")
    if none or not functions:
        return None
    return ToolUse(
        tuple(functions),
        forced,
        name,
        single or name is not None,
        frozenset(strict).intersection(told),
    )


def call(id: str, name: str, arguments: str | Mapping[str, Any]) -> Json:
    """A past call as a template reads it: arguments as an object where they are one, else as they stand. So do those
    that nobody could render: nested deeper than a body may be."""
    known: object = arguments
    if isinstance(arguments, str):
        with suppress(ValueError):
            parsed = from_json(arguments) if arguments.strip() else {}
            known = parsed if isinstance(parsed, dict) else arguments
    return {"id": id, "type": "function", "function": {"name": name, "arguments": known}}


def written(arguments: str) -> Json | str:
    """Arguments as a model wrote them, as far as they go: null and U+FFFD stand for what JSON and UTF-8 cannot hold.

    What is no object, or nested deeper than a body may be, is given as it stands.
    """
    text = _ESCAPED.sub(lambda found: r"\ufffd" if found["lone"] else found[0], arguments)
    try:
        known = from_json(text.strip() or "{}", allow_partial="trailing-strings")
    except ValueError:
        return arguments
    return _finite(known) if isinstance(known, dict) else arguments


def _finite(value: Any) -> Any:
    match value:
        case dict():
            return {name: _finite(each) for name, each in value.items()}
        case list():
            return [_finite(each) for each in value]
        case float() if not isfinite(value):
            return None
    return value


def with_names(messages: Sequence[Json]) -> list[Json]:
    """Results with the name of the function that gave them, which some templates want to say again."""
    names = {
        call["id"]: call["function"]["name"]
        for each in messages
        for call in each.get("tool_calls", ())
    }
    return [
        {"name": names[each["tool_call_id"]]} | each if each.get("tool_call_id") in names else each
        for each in messages
    ]


def check_count(messages: Sequence[object], field: str) -> None:
    if len(messages) > MAX_MESSAGES:
        raise BadRequest(
            "request.too_many", param=field, field=field, count=len(messages), limit=MAX_MESSAGES
        )
