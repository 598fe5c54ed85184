"""Errors of pydantic as ours: a code, the field as the client wrote it, and what is expected of it.

`expected` has no words of a language: JSON types, relations, the values themselves.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from omlx.errors import BadRequest

_EMPTY: Final = ("too_short", "string_too_short")
_LONG: Final = ("too_long", "string_too_long")
_CHOICES: Final = ("literal_error", "enum")
_RELATIONS: Final = {
    "greater_than": ("gt", ">"),
    "greater_than_equal": ("ge", "≥"),
    "less_than": ("lt", "<"),
    "less_than_equal": ("le", "≤"),
}
"""Name of the bound and relation to it, by pydantic's error type."""
_JSON_TYPES: Final = {
    "string": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "list": "array",
    "dict": "object",
    "model": "object",
    "model_attributes": "object",
}
"""By the beginning of pydantic's error type: `int_type`, `int_parsing`, `int_from_float`."""
_CODES: Final = {
    **dict.fromkeys(_EMPTY, "request.empty"),
    **dict.fromkeys(_RELATIONS, "request.range"),
    "literal_error": "request.value",
    "missing": "request.missing",
}
"""Ours by pydantic's error type; those of a wrong type end in `_type`, others are rare."""
_UNION_TAGS: Final = ("str", "constrained-str")
_POSITION: Final = re.compile(r"line \d+ column \d+")
_WHOLE: Final = "body"
"""Name of what has no name of its own: the body."""


def from_validation(error: ValidationError) -> BadRequest:
    """The first invalid field of a body, named as the client wrote it: `messages[0].role`.

    Where a field may have one of several types, the error is that of the type which matched most of
    the value.
    """
    details = error.errors(include_url=False, include_input=False)
    of_field = [detail for detail in details if detail["loc"][:1] == details[0]["loc"][:1]]
    detail = max(of_field, key=_match_depth)
    if detail["type"] == "json_invalid":
        position = _POSITION.search(detail["msg"])
        return BadRequest("request.json", detail=position[0] if position else "line 1 column 1")
    field = _field(detail)
    code = _CODES.get(detail["type"], "request.type" if _mistyped(detail) else "request.invalid")
    alternatives = [other for other in of_field if _field(other) == field]
    expected = _expected(detail, alternatives)
    return BadRequest(code, param=field or None, field=field or _WHOLE, expected=expected)


def _expected(detail: ErrorDetails, alternatives: Sequence[ErrorDetails]) -> str:
    """What the value must be; of a rare error its name."""
    kind, context = detail["type"], detail.get("ctx", {})
    if kind in _RELATIONS:
        bound, relation = _RELATIONS[kind]
        return f"{relation} {_number(context[bound])}"
    if kind in _LONG:
        return f"length ≤ {context['max_length']}"
    if kind in _CHOICES:
        return str(context["expected"]).replace(" or ", ", ")
    types = [_JSON_TYPES.get(other["type"].partition("_")[0]) for other in alternatives]
    return " | ".join(dict.fromkeys(filter(None, types))) or kind


def _number(bound: Any) -> str:
    if isinstance(bound, float) and bound.is_integer():
        bound = int(bound)
    return str(bound)


def _match_depth(error: ErrorDetails) -> tuple[int, bool]:
    """How deep into a value validation as one type got."""
    return len(error["loc"]), not _mistyped(error)


def _mistyped(error: ErrorDetails) -> bool:
    return error["type"].endswith("_type")


def _field(error: ErrorDetails) -> str:
    path = ""
    for part in error["loc"]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part not in _UNION_TAGS and "[" not in part and not part[:1].isupper():
            # Parts in upper case are names of pydantic models.
            path += f".{part}" if path else part
    return path
