"""Remove from a JSON schema the references that no generated value could complete.

A definition may require another value of its own kind, directly or through others, so that a model
which has begun such a value never reaches its end. References to such definitions are replaced by
`false` before generation: alternatives, optional properties and items disappear, and where nothing
else is allowed, no value follows the schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias
from urllib.parse import unquote

from omlx.text.map_schemas import map_schemas

Terminates: TypeAlias = Callable[[str], bool]
"""Whether the target of a reference has a value that terminates."""


def prune_nonterminating(schema: Any) -> Any:
    """Return the schema, or a copy without references to definitions that never terminate.

    Only references by JSON pointers within the schema are followed. Raises ValueError if no value
    terminates.
    """
    try:
        known = {"#", *references(schema)}
        terminating = _terminating(schema, known)
        if "#" not in terminating:
            raise ValueError("its values would never end")
        if terminating == known:
            return schema
        return _prune(schema, known - terminating)
    except RecursionError as error:
        raise ValueError(str(error)) from error


def _terminating(root: Any, references: set[str]) -> set[str]:
    """Return the references whose targets have a terminating value: the least fixed point."""
    known: set[str] = set()
    while len(more := _iterate(root, references, known)) > len(known):
        known = more
    return known


def _iterate(root: Any, references: set[str], known: set[str]) -> set[str]:
    """Evaluate each reference once; one that leads back to itself does not terminate as far as is
    `known`.
    """
    terminating, evaluated = set(known), set(known)

    def terminates(reference: str) -> bool:
        if reference not in evaluated:
            evaluated.add(reference)
            if _has_value(target(root, reference), terminates):
                terminating.add(reference)
        return reference in terminating

    return {reference for reference in sorted(references) if terminates(reference)}


def _has_value(schema: Any, terminates: Terminates) -> bool:
    """Return whether a value terminates, by the keywords that lead to other schemas."""
    if not isinstance(schema, Mapping):
        return schema is not False
    reference = schema.get("$ref")
    if isinstance(reference, str) and not terminates(reference):
        return False
    if not all(_has_value(part, terminates) for part in _list(schema.get("allOf"))):
        return False
    for keyword in ("anyOf", "oneOf"):
        options = _list(schema.get(keyword))
        if options and not any(_has_value(option, terminates) for option in options):
            return False
    if "type" not in schema or "const" in schema or "enum" in schema:
        return True
    kinds = _list(schema["type"]) or [schema["type"]]
    return any(_has_kind(kind, schema, terminates) for kind in kinds)


def _has_kind(kind: Any, schema: Mapping[str, Any], terminates: Terminates) -> bool:
    if kind == "object":
        return _has_object(schema, terminates)
    return kind != "array" or _has_array(schema, terminates)


def _has_object(schema: Mapping[str, Any], terminates: Terminates) -> bool:
    named = _mapping(schema.get("properties"))
    other = "patternProperties" in schema or schema.get("additionalProperties", True)
    required = [name for name in _list(schema.get("required")) if isinstance(name, str)]
    if not required and schema.get("minProperties"):
        return any(_has_value(value, terminates) for value in (*named.values(), other))
    return all(_has_value(named.get(name, other), terminates) for name in required)


def _has_array(schema: Mapping[str, Any], terminates: Terminates) -> bool:
    items, length = schema.get("items", True), schema.get("minItems", 0)
    first = _list(schema.get("prefixItems")) or _list(items)
    rest = items
    if isinstance(items, list):
        rest = schema.get("additionalItems", True)
    if not isinstance(length, int):
        return True
    return all(_has_value(item, terminates) for item in [*first, rest][:length])


def target(root: Any, reference: str) -> Any:
    """Return the target of a JSON pointer; if there is none, True, and the compiler reports the
    error.
    """
    target = root
    first, *parts = unquote(reference).split("/")
    if first != "#":
        return True
    for part in parts:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(target, list) and key.isdecimal() and int(key) < len(target):
            target = target[int(key)]
        elif isinstance(target, Mapping) and key in target:
            target = target[key]
        else:
            return True
    return target


def references(schema: Any) -> Iterator[str]:
    """Yield everything that looks like a reference; one inside data does no harm."""
    if isinstance(schema, Mapping):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"]
        schema = list(schema.values())
    for part in _list(schema):
        yield from references(part)


def _prune(schema: Any, nonterminating: set[str]) -> Any:
    def change(part: dict[str, Any]) -> Any:
        reference = part.get("$ref")
        return False if isinstance(reference, str) and reference in nonterminating else part

    return map_schemas(schema, change)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
