"""Functions of a request, and their copies as chat templates read them.

Grammars keep the client's schemas. Clients may leave out descriptions, properties and types, and
write schemas as booleans; templates read these keys without a check. Every copy has them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from omlx.text.schema import BY_NAME, DEFINITIONS, listed, map_schemas, properties_of, resolve


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Tools and tool choice of a request."""

    # As in chat templates: `{"type": "function", "function": {"name": …, "parameters": …}}`.
    functions: tuple[Mapping[str, Any], ...]
    forced: bool = False  # the answer must be a call, of `name` if set
    name: str | None = None
    single: bool = False  # at most one call
    # Functions whose arguments must follow their schema even if no call is forced.
    strict: frozenset[str] = frozenset()

    @property
    def allowed(self) -> tuple[Mapping[str, Any], ...]:
        """Functions that may be called, each as `{"name": …, "parameters": …}`."""
        functions = (tool["function"] for tool in self.functions)
        return tuple(function for function in functions if self.name in (None, function["name"]))


Tool: TypeAlias = dict[str, Any]
Schema: TypeAlias = dict[str, Any]

MAX_INLINED: Final = 1 << 20
"""Characters of definitions inlined in a request — nested references multiply."""
_NULLABLE: Final = frozenset({"default", "const"})  # keywords whose value may be null
_LISTS: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE: Final = ("items", "not", "if", "then", "else", "contains", "propertyNames")
"""Keywords whose value is a schema.

`additionalProperties` is left out: usually a boolean, as templates expect.
"""
_ARRAYS: Final = ("required", "enum", *_LISTS)
_NOTHING: Final[Schema] = {"not": {}}


def template_tools(
    tools: Sequence[Mapping[str, Any]], *, schemas: bool = True, definitions: bool = True
) -> list[Tool]:
    """Return the functions with a description, and parameters as an object with properties.

    Nulls are dropped, booleans in place of schemas become schemas; properties of alternatives at
    the root are listed. Without `schemas`, each parameter has a single simple type and a
    description; without `definitions`, references are replaced by their targets.
    """
    inlining = _Inlining()
    shown = []
    for function in (tool["function"] for tool in tools):
        parameters = _rooted(map_schemas(function.get("parameters") or {}, _regular))
        if not definitions:
            parameters = inlining.of(parameters)
        if not schemas:
            properties = parameters["properties"].items()
            plain = {name: map_schemas(schema, _plain) for name, schema in properties}
            parameters |= {"properties": plain}
        description = function.get("description") or ""
        named = {"name": function["name"], "description": description, "parameters": parameters}
        shown.append({"type": "function", "function": named})
    return shown


def tools_as_text(functions: Sequence[Mapping[str, Any]], example: str) -> str:
    """Return instructions for templates without functions.

    `example` is a call as the model writes it.
    """
    shown = template_tools(functions)
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in shown)
    return (
        f"You can call these functions:\n\n{listed}\n\n"
        f"Call a function in exactly this form, with its own name and arguments:\n\n{example}"
    )


def without_nulls(schema: Mapping[str, Any]) -> Schema:
    """Return a copy without null keywords; null properties are of any type.

    Serializers write unset values as null, which no schema allows.
    """
    copy: Schema = map_schemas(schema, _without_nulls)
    return copy


def _without_nulls(schema: Schema) -> Schema:
    kept = {key: value for key, value in schema.items() if value is not None or key in _NULLABLE}
    for key in BY_NAME:
        if isinstance(kept.get(key), Mapping):
            named = kept[key].items()
            kept[key] = {name: {} if part is None else part for name, part in named}
    return kept


def _regular(schema: Schema) -> Schema:
    # Inner schemas are regular already.
    regular = _without_nulls(schema)
    for key in _ARRAYS:
        if key in regular and not isinstance(regular[key], list):
            del regular[key]
    if "required" in regular:
        regular["required"] = [name for name in regular["required"] if isinstance(name, str)]
    for key in BY_NAME:
        if isinstance(regular.get(key), Mapping):
            regular[key] = {name: _schema(part) for name, part in regular[key].items()}
        else:
            regular.pop(key, None)
    if isinstance(regular.get("items"), list):  # form of older JSON Schema drafts
        regular["prefixItems"] = regular.pop("items")
    for key in _LISTS:
        if key in regular:
            regular[key] = [_schema(part) for part in regular[key]]
    for key in _SINGLE:
        if key in regular:
            regular[key] = _schema(regular[key])
    return regular


def _schema(part: Any) -> Schema:
    if isinstance(part, dict):
        return part
    return dict(_NOTHING) if part is False else {}


def _rooted(root: Schema) -> Schema:
    """Return an object with properties, also those of references and alternatives."""
    properties: dict[str, Schema] = {}
    required: dict[str, None] = {}
    seen = set()
    parts = [(root, True)]  # schema, and whether it always applies
    for part, always in parts:
        for name, schema in properties_of(part).items():
            properties.setdefault(name, _schema(schema))
        if always:
            required |= {
                name: None for name in listed(part.get("required")) if isinstance(name, str)
            }
        reference = part.get("$ref")
        if isinstance(reference, str) and reference not in seen:
            seen.add(reference)
            parts.append((_schema(resolve(root, reference)), always))
        for key in ("allOf", "anyOf", "oneOf"):
            further = always and key == "allOf"
            parts += [(_schema(alternative), further) for alternative in listed(part.get(key))]
    rooted = {**root, "type": "object", "properties": properties}
    if required:
        rooted["required"] = list(required)
    return rooted


class _Inlining:
    """Replacement of references by their targets, except circular ones and beyond the limit."""

    def __init__(self) -> None:
        self._left = MAX_INLINED

    def of(self, root: Schema) -> Schema:
        """Return a schema without its definitions, but unchanged if nested too deep."""
        own = {key: value for key, value in root.items() if key not in DEFINITIONS}
        try:
            inlined: Schema = map_schemas(own, partial(self._inlined, root, ()))
        except RecursionError:
            return root
        return inlined

    def _inlined(self, root: Schema, within: tuple[str, ...], schema: Schema) -> Schema:
        reference = schema.get("$ref")
        if not isinstance(reference, str) or reference in within:
            return schema
        named = _schema(resolve(root, reference))
        self._left -= len(json.dumps(named))
        if self._left < 0:
            return schema
        named = map_schemas(named, partial(self._inlined, root, (*within, reference)))
        return {**named, **{key: value for key, value in schema.items() if key != "$ref"}}


def _plain(schema: Schema) -> Schema:
    kinds = schema.get("type")
    kinds = [kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if kind != "null"]
    plain = {"description": "", **schema}
    plain.pop("type", None)
    if kinds and kinds[0] is not None:
        plain["type"] = kinds[0] if len(kinds) == 1 else kinds
    if plain.get("type") == "object":
        plain.setdefault("additionalProperties", {})
    return plain
