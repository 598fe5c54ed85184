"""The objects that a schema of arguments allows, where its root refers to or combines others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from omlx.text.calls.values import ArgumentTypes

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
        merged = _merged(first, option)
        if merged is not None:
            yield merged


def _merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> Mapping[str, Any] | None:
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
