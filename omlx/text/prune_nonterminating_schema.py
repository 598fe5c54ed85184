"""Takes out of a JSON schema what no answer would ever get to the end of.

A definition may need another value of its kind inside of each of its values, directly or by way of others. A model that
has begun such a value can only go on. So whatever refers to one is replaced by `false` before anything is generated:
such alternatives, optional properties and items are gone, and where nothing else may come, nothing has the form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

Ends: TypeAlias = Callable[[str], bool]
"""Whether what a reference leads to has a value that ends."""

_DATA: Final = frozenset({"const", "enum", "default", "examples"})
_BY_NAME: Final = frozenset({"properties", "patternProperties", "$defs", "definitions"})


def prune_nonterminating(schema: Any) -> Any:
    """The same schema, or a copy without references to what never ends.

    Only references by pointers within the schema are followed. Raises ValueError if no value would ever end.
    """
    try:
        references = {"#", *_references(schema)}
        ending = _ending(schema, references)
        if "#" not in ending:
            raise ValueError("its values would never end")
        return schema if ending == references else _without(schema, references - ending)
    except RecursionError as error:
        raise ValueError(str(error)) from error


def _ending(root: Any, references: set[str]) -> set[str]:
    """Those of the references that preamble to something that ends: the least fixed point."""
    found: set[str] = set()
    while len(more := _round(root, references, found)) > len(found):
        found = more
    return found


def _round(root: Any, references: set[str], known: set[str]) -> set[str]:
    """Looks at each reference once. One that leads back to where it came from does not end, as far as is `known`."""
    found, tried = set(known), set(known)

    def ends(reference: str) -> bool:
        if reference not in tried:
            tried.add(reference)
            if _ends(_target(root, reference), ends):
                found.add(reference)
        return reference in found

    return {reference for reference in sorted(references) if ends(reference)}


def _ends(schema: Any, ends: Ends) -> bool:
    """Whether a value of this schema ends, as far as the keywords tell that preamble from one schema to another."""
    if not isinstance(schema, Mapping):
        return schema is not False
    reference = schema.get("$ref")
    if isinstance(reference, str) and not ends(reference):
        return False
    if not all(_ends(each, ends) for each in _list(schema.get("allOf"))):
        return False
    for options in (_list(schema.get("anyOf")), _list(schema.get("oneOf"))):
        if options and not any(_ends(each, ends) for each in options):
            return False
    if "type" not in schema or "const" in schema or "enum" in schema:
        return True
    kinds = _list(schema["type"]) or [schema["type"]]
    return any(
        _object_ends(schema, ends)
        if kind == "object"
        else _array_ends(schema, ends)
        if kind == "array"
        else True
        for kind in kinds
    )


def _object_ends(schema: Mapping[str, Any], ends: Ends) -> bool:
    named = _mapping(schema.get("properties"))
    other = "patternProperties" in schema or schema.get("additionalProperties", True)
    needed = [name for name in _list(schema.get("required")) if isinstance(name, str)]
    if not needed and schema.get("minProperties"):
        return any(_ends(each, ends) for each in (*named.values(), other))
    return all(_ends(named.get(name, other), ends) for name in needed)


def _array_ends(schema: Mapping[str, Any], ends: Ends) -> bool:
    items, least = schema.get("items", True), schema.get("minItems", 0)
    first = _list(schema.get("prefixItems")) or _list(items)
    rest = schema.get("additionalItems", True) if isinstance(items, list) else items
    return all(
        _ends(each, ends) for each in [*first, rest][: least if isinstance(least, int) else 0]
    )


def _target(root: Any, reference: str) -> Any:
    """What a pointer leads to; a schema that anything has if nothing, for others to complain about."""
    found = root
    first, *parts = unquote(reference).split("/")
    for part in parts:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        elif isinstance(found, Mapping) and key in found:
            found = found[key]
        else:
            return True
    return found if first == "#" else True


def _references(schema: Any) -> Iterator[str]:
    """Whatever looks like a reference; one in what is data does no harm."""
    if isinstance(schema, Mapping):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"]
        schema = list(schema.values())
    for each in _list(schema):
        yield from _references(each)


def _without(schema: Any, endless: set[str]) -> Any:
    if isinstance(schema, list):
        return [_without(each, endless) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    if isinstance(schema.get("$ref"), str) and schema["$ref"] in endless:
        return False
    return {key: _inside(key, value, endless) for key, value in schema.items()}


def _inside(key: str, value: Any, endless: set[str]) -> Any:
    if key in _DATA:
        return value
    if key in _BY_NAME and isinstance(value, Mapping):
        return {name: _without(each, endless) for name, each in value.items()}
    return _without(value, endless)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
