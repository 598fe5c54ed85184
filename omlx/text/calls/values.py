"""Argument values written as text by a model, typed by the schema of the function.

A text becomes JSON of an allowed type, else remains text. A value that may only be a string is
never changed, and integers are exact at any size.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from math import copysign, isinf
from typing import Any, Final, NoReturn

import regex as re

from omlx.text.calls.repair import repaired
from omlx.text.schema import SchemaTypes, properties_of, type_of

_WORDS: Final[Mapping[str, bool | None]] = {
    "true": True,
    "false": False,
    "null": None,
    "none": None,
}
"""Python's spellings of JSON constants, which models write."""
_FENCE: Final = re.compile(r"```(?:\w+[ \t]*\n|\s*)(.*?)\s*```", re.DOTALL)


def convert(types: SchemaTypes, name: str, text: str) -> Any:
    return typed_value(types, types.property(name), text)


def typed_value(types: SchemaTypes, schema: Any, text: str) -> Any:
    """Convert text to a type that `schema` allows; any other text is returned unchanged."""
    choices, stripped = types.choices(schema), text.strip()
    if text in choices:
        return text
    kinds = types.kinds(schema)
    if kinds == {"string"}:
        return stripped if stripped in choices else text
    if "string" in kinds and text != stripped and not stripped.startswith(("{", "[")):
        return text
    return _json_value(text, kinds)


def _parameters(tools: Iterable[Mapping[str, Any]], name: str) -> Any:
    functions = (tool["function"] for tool in tools)
    return next((each.get("parameters") for each in functions if each["name"] == name), None)


def argument_types(tools: Iterable[Mapping[str, Any]], name: str) -> SchemaTypes:
    """Return the types of the arguments of function `name`; any type if unknown."""
    return SchemaTypes(_parameters(tools, name))


def properties(tools: Iterable[Mapping[str, Any]], name: str) -> Iterable[str]:
    return properties_of(_parameters(tools, name))


def is_function(tools: Iterable[Mapping[str, Any]], name: str) -> bool:
    return any(tool["function"]["name"] == name for tool in tools)


def parse_json(text: str) -> Any:
    """Parse JSON that may hold raw control characters.

    Raises ValueError, also for NaN and for a number out of range; within a list or an object such a
    number becomes the largest float, which grammars of JSON allow.
    """
    number = _nearest if text.lstrip().startswith(("{", "[")) else _finite
    return json.loads(text, strict=False, parse_constant=_refuse, parse_float=number)


def _json_value(text: str, kinds: frozenset[str]) -> Any:
    stripped = text.strip()
    value: Any = text
    with suppress(ValueError, RecursionError):
        value = parse_json(stripped)
        if isinstance(value, float) and "number" not in kinds and value.is_integer():
            value = int(value)
        if type_of(value) in kinds and not isinstance(value, str):
            return value
    if "string" in kinds:
        return text
    word = _WORDS.get(stripped.lower(), text)
    if word is not text and type_of(word) in kinds:
        return word
    if kinds & {"array", "object"}:
        structured = _structure(value if isinstance(value, str) else stripped, kinds)
        if structured is not None:
            return structured
    return value


def _structure(text: str, kinds: frozenset[str]) -> Any:
    """Parse a list or object: fenced, in Python's syntax, or with bracket errors.

    None for any other text.
    """
    fenced = _FENCE.fullmatch(text.strip())
    text = fenced[1] if fenced is not None else text.strip()
    for parse in (parse_json, _literal, _repaired):
        with suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            value = parse(text)
            if type_of(value) in kinds & {"array", "object"}:
                return value
    return None


def _literal(text: str) -> Any:
    return json.loads(json.dumps(ast.literal_eval(text), allow_nan=False))


def _repaired(text: str) -> Any:
    if not text.startswith(("{", "[")):
        raise ValueError("no list or object")
    return parse_json(repaired(text, whole=True))


def _finite(text: str) -> float:
    number = float(text)
    if isinf(number):
        raise ValueError("a number out of range")
    return number


def _nearest(text: str) -> float:
    number = float(text)
    return copysign(sys.float_info.max, number) if isinf(number) else number


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
