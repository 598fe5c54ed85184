"""Argument values that a model wrote as text, typed by the schema of the function.

A text becomes what the schema allows: JSON of an allowed type, else the text as it stands. A value
that may only be a string is never changed, and integers are exact at any size.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from math import copysign, isinf
from typing import Any, Final, NoReturn

import regex as re

from omlx.text.calls.repair import repaired_whole
from omlx.text.schema import resolve

TYPES: Final = frozenset({"string", "integer", "number", "boolean", "null", "array", "object"})
_WORDS: Final[Mapping[str, bool | None]] = {
    "true": True,
    "false": False,
    "null": None,
    "none": None,
}
"""Spellings of Python that models use for JSON."""
_FENCE: Final = re.compile(r"```(?:\w+[ \t]*\n|\s*)(.*?)\s*```", re.DOTALL)


class ArgumentTypes:
    """The types of the arguments of one function, by the JSON schema of its parameters."""

    def __init__(self, parameters: Any) -> None:
        self.root: Mapping[str, Any] = parameters if isinstance(parameters, Mapping) else {}
        self._known: dict[int, frozenset[str]] = {}
        self._properties: dict[str, Any] = {}

    def convert(self, name: str, text: str) -> Any:
        return self.value(self.property(name), text)

    def value(self, schema: Any, text: str) -> Any:
        """Return the value of `schema`'s type that `text` stands for; a text that stands for none
        unchanged.
        """
        choices = self.choices(schema)
        if text in choices:
            return text
        kinds = self.kinds(schema)
        if kinds == {"string"}:
            stripped = text.strip()
            return stripped if stripped in choices else text
        if "string" in kinds and text != text.strip() and not text.strip().startswith(("{", "[")):
            return text
        return _json_value(text, kinds)

    def kinds(self, schema: Any) -> frozenset[str]:
        return self._kinds(schema) or TYPES

    def choices(self, schema: Any) -> list[str]:
        found: list[str] = []
        for branch in self.branches(schema):
            for listed in (branch.get("enum"), [branch.get("const")]):
                if isinstance(listed, list):
                    found += (choice for choice in listed if isinstance(choice, str))
        return list(dict.fromkeys(found))

    def lists(self, schema: Any, text: str, depth: int = 8) -> bool:
        """Return whether the enumerations of a schema allow a text."""
        if not isinstance(schema, Mapping) or not depth:
            return schema is not False
        if text not in schema.get("enum", [text]) or schema.get("const", text) != text:
            return False
        if "$ref" in schema and not self.lists(self.resolve(schema["$ref"]), text, depth - 1):
            return False
        if not all(self.lists(part, text, depth // 2) for part in schema.get("allOf", ())):
            return False
        options = [schema[key] for key in ("anyOf", "oneOf") if key in schema]
        return all(
            any(self.lists(option, text, depth // 2) for option in either) for either in options
        )

    def free_text(self, schema: Any, depth: int = 8) -> bool:
        """Return whether a schema allows strings that it does not enumerate."""
        if not isinstance(schema, Mapping):
            return schema is not False
        if not depth or "enum" in schema or "const" in schema or "string" not in self.kinds(schema):
            return False
        target = self.resolve(schema.get("$ref"))
        if target is not None and not self.free_text(target, depth - 1):
            return False
        parts = schema.get("allOf")
        if isinstance(parts, list) and not all(self.free_text(part, depth // 2) for part in parts):
            return False
        for key in ("anyOf", "oneOf"):
            branches = schema.get(key)
            if isinstance(branches, list):
                return any(self.free_text(branch, depth // 2) for branch in branches[:64])
        return True

    def declares(self, name: str) -> bool:
        return bool(self._declared(name))

    def branches(self, schema: Any, depth: int = 8) -> Iterator[Mapping[str, Any]]:
        """Yield a schema, and those that it refers to or combines."""
        if not isinstance(schema, Mapping) or not depth:
            return
        yield schema
        yield from self.branches(self.resolve(schema.get("$ref")), depth - 1)
        for key in ("anyOf", "oneOf", "allOf"):
            combined = schema.get(key)
            if isinstance(combined, list) and len(combined) < 64:
                for branch in combined:
                    yield from self.branches(branch, depth // 2)

    def property(self, name: str) -> Any:
        """Return the schema of argument `name`, by all alternatives at the root of the schema."""
        if name not in self._properties:
            declared = self._declared(name)
            schema = self.root.get("additionalProperties", True)
            if declared:
                schema = declared[0] if len(declared) == 1 else {"anyOf": declared}
            self._properties[name] = schema
        return self._properties[name]

    def _declared(self, name: str) -> list[Any]:
        found = []
        for branch in self.branches(self.root):
            properties = branch.get("properties")
            if isinstance(properties, Mapping) and name in properties:
                found.append(properties[name])
        return found

    def resolve(self, reference: Any) -> Any:
        return resolve(self.root, reference)

    def _kinds(self, schema: Any) -> frozenset[str]:
        """Return the types that a schema allows; none while the same schema is being examined."""
        if not isinstance(schema, Mapping):
            return TYPES
        if id(schema) not in self._known:
            self._known[id(schema)] = frozenset()
            self._known[id(schema)] = self._examine(schema)
        return self._known[id(schema)]

    def _examine(self, schema: Mapping[str, Any]) -> frozenset[str]:
        kinds = _declared(schema.get("type"))
        if "const" in schema:
            kinds &= {type_of(schema["const"])}
        if isinstance(schema.get("enum"), list):
            kinds &= set(map(type_of, schema["enum"]))
        target = self.resolve(schema.get("$ref"))
        if target is not None:
            kinds &= self._kinds(target)
        for key in ("anyOf", "oneOf"):
            if isinstance(schema.get(key), list):
                kinds &= frozenset[str]().union(*map(self._kinds, schema[key]))
        if isinstance(schema.get("allOf"), list):
            kinds = kinds.intersection(*map(self._kinds, schema["allOf"]))
        return kinds


def _parameters(tools: Iterable[Mapping[str, Any]], name: str) -> Any:
    functions = (tool["function"] for tool in tools)
    return next((each.get("parameters") for each in functions if each["name"] == name), None)


def argument_types(tools: Iterable[Mapping[str, Any]], name: str) -> ArgumentTypes:
    """Return the types of the arguments of function `name`; any type for an unknown one."""
    return ArgumentTypes(_parameters(tools, name))


def properties(tools: Iterable[Mapping[str, Any]], name: str) -> Iterable[str]:
    schema = _parameters(tools, name)
    declared = schema.get("properties") if isinstance(schema, Mapping) else None
    return declared if isinstance(declared, Mapping) else ()


def is_function(tools: Iterable[Mapping[str, Any]], name: str) -> bool:
    return any(tool["function"]["name"] == name for tool in tools)


def parse_json(text: str) -> Any:
    """Parse JSON that may hold raw control characters. Raises ValueError, also for NaN and for a
    number out of range; within a list or an object that becomes the largest one, as grammars of
    JSON allow it.
    """
    number = _nearest if text.lstrip().startswith(("{", "[")) else _finite
    return json.loads(text, strict=False, parse_constant=_refuse, parse_float=number)


def _declared(types: Any) -> frozenset[str]:
    names = types if isinstance(types, list) else [types]
    kinds = TYPES.intersection(name for name in names if isinstance(name, str))
    if "number" in kinds:
        kinds |= {"integer"}
    return kinds or TYPES


def type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def _json_value(text: str, kinds: frozenset[str]) -> Any:
    """Return the JSON value of an allowed type that a text is; the text itself where it is none."""
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
    """Return the list or object that a text means: in a code fence, of Python, or with slips in its
    brackets; None if it means none.
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
    return parse_json(repaired_whole(text) or "")


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
