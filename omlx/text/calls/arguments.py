"""Grammars of arguments that are neither one JSON object nor texts between tags.

`ArgumentSyntax` is what a family states: its grammar by the JSON schema of a function, and its text
for given arguments. `ValueRules` builds a grammar by the schema's structure, for families whose
values are no JSON. Members come in the order of the schema.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from omlx.text.calls.values import ArgumentTypes
from omlx.text.schema import BOUNDS, map_schemas, references

Literal: TypeAlias = Callable[[str], str]
"""Returns a text in the grammar's form."""

SHARED: Final = ("$defs", "definitions", "x-guidance")
"""Keys of a schema that the schema of one argument needs too."""
_DEFINITIONS: Final = ("#/$defs/", "#/definitions/")
_NUMBER: Final = r"/-?(0|[1-9][0-9]{0,99})(\.[0-9]+)?([eE][+\-]?[0-9]{1,2})?/"
_INTEGER: Final = "/-?(0|[1-9][0-9]{0,999})/"
NUMBER_BOUNDS: Final = (*BOUNDS, "multipleOf")
_ANNOTATIONS: Final = frozenset({"title", "description", "default", "examples", "$comment"})


@dataclass(frozen=True, slots=True)
class Notation:
    """What a grammar of arguments needs to know of the whole.

    `added` are the tokens that the tokenizer does not compose of smaller ones; `literal` returns a
    text in the grammar's form; `unheld` takes a description of what is not enforced of a schema,
    and raises ValueError where all of it must be.
    """

    added: Collection[str]
    literal: Literal
    unheld: Callable[[str], None]


class ArgumentSyntax(Protocol):
    """How the arguments of a call are written."""

    @property
    def ender(self) -> str:
        """Text that ends a free text, for the rule `text`; empty if the syntax has none."""

    def rules(
        self, schema: Mapping[str, Any] | None, rule: str, notation: Notation
    ) -> Iterator[str]:
        """Yield the rule for the arguments of a schema, or for any arguments (None), and those that
        it needs. Raises ValueError for a schema that cannot be written.
        """

    def text(self, arguments: Mapping[str, Any]) -> str:
        """Return the text of given arguments."""


def embedded(schema: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    """Return a part of a schema as a schema of its own, with what its references lead to."""
    shared = {key: root[key] for key in SHARED if key in root}
    outside = [name for name in references([schema, shared]) if not name.startswith(_DEFINITIONS)]
    if not outside:
        return {**schema, **shared}

    def moved(part: dict[str, Any]) -> dict[str, Any]:
        reference = part.get("$ref")
        if isinstance(reference, str) and reference.startswith("#"):
            part["$ref"] = f"#/$defs/root{reference[1:]}"
        return part

    guidance = {key: root[key] for key in ("x-guidance",) if key in root}
    whole = {key: value for key, value in root.items() if key not in guidance}
    part = {key: value for key, value in schema.items() if key not in SHARED}
    defined = {"$defs": {"root": map_schemas(whole, moved)}}
    return {**map_schemas(part, moved), **defined, **guidance}


def members(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any, bool]]:
    """Yield name, schema and whether it is required of each member of an object."""
    required = schema.get("required", ())
    properties = {**schema.get("properties", {})}
    for name in required:
        properties.setdefault(name, True)
    for name, value in properties.items():
        if value is not False or name in required:
            yield name, value, name in required


def is_open(schema: Mapping[str, Any]) -> bool:
    """Return whether an object may have any members, and declares none."""
    return not any(members(schema)) and schema.get("additionalProperties") is not False


def unheld_of_object(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield what of an object's schema is not enforced where its members are written one by one."""
    count = len(list(members(schema)))
    if "patternProperties" in schema and (count or is_open(schema)):
        yield "patternProperties"
    if schema.get("minProperties", 0) > len(schema.get("required", ())):
        yield "minProperties"
    if "maxProperties" in schema and (schema["maxProperties"] < count or is_open(schema)):
        yield "maxProperties"


def alternatives_of(schema: Mapping[str, Any], notation: Notation) -> list[Mapping[str, Any]]:
    """Return the alternatives at the root of a schema; the schema where these are too many."""
    try:
        return object_alternatives(embedded(schema, schema))
    except ValueError as error:
        notation.unheld(str(error))
        return [schema]


def in_alternatives(
    alternatives: Sequence[Mapping[str, Any]],
    rule: str,
    rules: Callable[[Mapping[str, Any], str], Iterator[str]],
) -> Iterator[str]:
    """Yield the rule for one of several objects, and those that it needs; `rules` yields the rule
    for an object, and its needs.
    """
    if len(alternatives) == 1:
        yield from rules(alternatives[0], rule)
        return
    yield f"{rule}: " + " | ".join(f"{rule}_way{i}" for i in range(len(alternatives)))
    for i, alternative in enumerate(alternatives):
        yield from rules(alternative, f"{rule}_way{i}")


def in_order(parts: Sequence[tuple[str, bool]], separator: str, rule: str) -> Iterator[str]:
    """Yield the rule for a list of parts, and those that it needs; of each part it is given whether
    it must be there.
    """
    count = len(parts)
    yield f'{rule}_first{count}: ""'
    yield f'{rule}_rest{count}: ""'
    for number in reversed(range(count)):
        part, needed = parts[number]
        first = f"{part} {rule}_rest{number + 1}"
        rest = f"{separator} {first}"
        if not needed:
            first += f" | {rule}_first{number + 1}"
            rest += f" | {rule}_rest{number + 1}"
        yield f"{rule}_first{number}: {first}"
        yield f"{rule}_rest{number}: {rest}"
    yield f"{rule}: {rule}_first0"


class ValueRules(ABC):
    """Rules for the values of one function's arguments, a rule for each schema.

    Raises ValueError for a schema that cannot be written.
    """

    def __init__(self, root: Mapping[str, Any], rule: str, notation: Notation) -> None:
        self.root = root
        self.notation = notation
        self.literal = notation.literal
        self.rules: list[str] = []
        self.name = rule
        self._known: dict[str, str] = {}

    @abstractmethod
    def string(self, schema: Mapping[str, Any]) -> str:
        """Return the term for any string."""

    @abstractmethod
    def array(self, schema: Mapping[str, Any], rule: str) -> str:
        """Return the term for a list."""

    @abstractmethod
    def object(self, schema: Mapping[str, Any], rule: str) -> str:
        """Return the term for an object."""

    @abstractmethod
    def constant(self, value: Any) -> str:
        """Return the term for a given value."""

    def kinds(self, schema: Any) -> frozenset[str]:
        """Return the JSON types that a schema allows."""
        # Knows schemas by their identity, and these are made for a moment.
        return ArgumentTypes(self.root).kinds(schema)

    def scalar(self, term: str) -> str:
        """Return the term for a value that is written as in JSON."""
        return term

    def value(self, schema: Any) -> str:
        """Return the name of the rule for a value."""
        schema = _plain(schema)
        key = json.dumps(schema, sort_keys=True)
        if key not in self._known:
            rule = self._known[key] = f"{self.name}_value{len(self._known)}"
            self.rules.append(f"{rule}: {self.alternatives(schema, rule)}")
        return self._known[key]

    def alternatives(self, schema: Mapping[str, Any], rule: str) -> str:
        """Return the right side of the rule for a value."""
        terms = list(self._terms(schema, rule))
        if not terms:
            raise ValueError("nothing has this form")
        return " | ".join(terms)

    def _terms(self, schema: Mapping[str, Any], rule: str) -> Iterator[str]:
        rest = dict(schema)
        if "const" in schema or "enum" in schema:
            for value in schema.get("enum", [schema.get("const")]):
                if "const" not in schema or value == schema["const"]:
                    yield self.constant(value)
        elif "$ref" in schema:
            target = ArgumentTypes(self.root).resolve(rest.pop("$ref"))
            if target is None:
                raise ValueError(f"{schema['$ref']} is not in the schema")
            yield self.value(_merged(_plain(target), rest))
        elif "allOf" in schema:
            for part in rest.pop("allOf"):
                rest = _merged(rest, self._resolved(part))
            yield self.value(rest)
        elif options := rest.pop("anyOf", None) or rest.pop("oneOf", None):
            for option in options:
                if option is not False:
                    yield self.value(_merged(rest, _plain(option)))
        else:
            for kind in self._kinds(schema):
                yield self._kind(kind, schema, rule)

    def _resolved(self, schema: Any) -> Mapping[str, Any]:
        plain = _plain(schema)
        if "$ref" not in plain:
            return plain
        rest = {key: plain[key] for key in plain if key != "$ref"}
        return _merged(self._resolved(ArgumentTypes(self.root).resolve(plain["$ref"])), rest)

    def _kinds(self, schema: Mapping[str, Any]) -> Collection[str]:
        if "type" not in schema:
            if "properties" in schema:
                return ("object",)
            if "items" in schema:
                return ("array",)
        kinds = self.kinds(schema)
        if "number" in kinds:
            kinds -= {"integer"}
        return sorted(kinds)

    def _kind(self, kind: str, schema: Mapping[str, Any], rule: str) -> str:
        match kind:
            case "string":
                return self.string(schema)
            case "array":
                if "prefixItems" in schema or isinstance(schema.get("items"), list):
                    raise ValueError("lists whose items differ by place are not supported")
                return self.array(schema, rule)
            case "object":
                return self.object(schema, rule)
            case "boolean":
                return self.scalar('("true" | "false")')
            case "null":
                return self.scalar('"null"')
        bounds = {key: schema[key] for key in NUMBER_BOUNDS if key in schema}
        if bounds:
            return self.scalar(f"%json {json.dumps({'type': kind, **bounds})}")
        return self.scalar(_NUMBER if kind == "number" else _INTEGER)


def repeated(item: str, separator: str, schema: Mapping[str, Any]) -> str:
    """Return the term for as many items as a schema of lists allows."""
    least, most = schema.get("minItems", 0), schema.get("maxItems")
    if most == 0:
        return '""'
    more = ""
    if most != 1:
        end = "" if most is None else most - 1
        more = f" ({separator} {item}){{{max(least - 1, 0)},{end}}}"
    optional = "" if least else "?"
    return f"({item}{more}){optional}"


def _plain(schema: Any) -> Mapping[str, Any]:
    """Return a schema as an object, without annotations."""
    if schema is False:
        raise ValueError("nothing has this form")
    if not isinstance(schema, Mapping):
        return {}
    plain: dict[str, Any] = {key: schema[key] for key in schema if key not in _ANNOTATIONS}
    return plain


def _merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema that demands what two schemas demand."""
    both = {**first, **second}
    if "properties" in first and "properties" in second:
        both["properties"] = {**first["properties"], **second["properties"]}
    if "enum" in first and "enum" in second:
        both["enum"] = [value for value in first["enum"] if value in second["enum"]]
    if "required" in first and "required" in second:
        both["required"] = list(dict.fromkeys([*first["required"], *second["required"]]))
    return both


MAX_ALTERNATIVES: Final = 32
_MAX_DEPTH: Final = 16
_COMBINED: Final = ("$ref", "allOf", "anyOf", "oneOf")


def object_alternatives(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return schemas of objects, one of which the arguments must follow.

    Raises ValueError for too many alternatives, circular references, and if nothing is allowed.
    """
    if not any(key in schema for key in _COMBINED):
        return [schema]
    found = list(_alternatives(ArgumentTypes(schema), schema, 0))
    if not found:
        raise ValueError("nothing has this form")
    return found


def _alternatives(types: ArgumentTypes, schema: Any, depth: int) -> Iterator[Mapping[str, Any]]:
    if not isinstance(schema, Mapping):
        if schema is not False:
            yield {}
        return
    if depth > _MAX_DEPTH:
        raise ValueError("a circular reference")
    parts: list[list[Mapping[str, Any]]]
    parts = [[{key: schema[key] for key in schema if key not in _COMBINED}]]
    if "$ref" in schema:
        parts.append(list(_alternatives(types, types.resolve(schema["$ref"]), depth + 1)))
    parts += [list(_alternatives(types, part, depth + 1)) for part in schema.get("allOf", ())]
    for key in ("anyOf", "oneOf"):
        if key in schema:
            options = [option for option in schema[key] if "object" in types.kinds(option)]
            parts.append([])
            for option in options:
                parts[-1] += _alternatives(types, option, depth + 1)
    merged: list[Mapping[str, Any]] = [{}]
    for part in parts:
        merged = [both for first in merged for both in _merged_with(first, part)]
        if len(merged) > MAX_ALTERNATIVES:
            raise ValueError(f"it has more than {MAX_ALTERNATIVES} alternatives")
    yield from merged


def _merged_with(
    first: Mapping[str, Any], options: list[Mapping[str, Any]]
) -> Iterator[Mapping[str, Any]]:
    for option in options:
        merged = _both(first, option)
        if merged is not None:
            yield merged


def _both(first: Mapping[str, Any], second: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return a schema of the objects that both allow; None if there are none."""
    properties = dict(first.get("properties", {}))
    for name, value in second.get("properties", {}).items():
        if name in properties and properties[name] != value:
            value = {"allOf": [properties[name], value]}
        properties[name] = value
    required = list(dict.fromkeys([*first.get("required", ()), *second.get("required", ())]))
    for part in (first, second):
        if part.get("additionalProperties") is False:
            properties = {name: properties[name] for name in part.get("properties", {})}
            if not set(required) <= set(properties):
                return None
    both = {**first, **second, "properties": properties, "required": required}
    if first.get("additionalProperties") is False:
        both["additionalProperties"] = False
    return both
