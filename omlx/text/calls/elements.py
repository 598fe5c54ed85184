"""Reader of values that are written as nested elements: a key is an element, and so is each item of
a list.

    <spot><x>1</x></spot><tags><item>a</item></tags>
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import regex as re

from omlx.text.calls.format import Incomplete
from omlx.text.calls.values import ArgumentTypes

ITEM: Final = "item"
_DEPTH: Final = 64


@dataclass(slots=True)
class Element:
    """`start` and `end` delimit what is inside of its tags."""

    name: str
    start: int
    end: int = 0
    children: list[Element] = field(default_factory=list)


def elements(text: str, tag: re.Pattern[str]) -> list[Element]:
    """Return the elements of a text. `tag` matches a tag, with groups `name` and `close`.

    Raises ValueError for a tag without its partner, and Incomplete where the text ends inside.
    """
    root = Element("", 0)
    opened = [root]
    for match in tag.finditer(text):
        if match["close"]:
            if opened[-1].name != match["name"] or len(opened) == 1:
                raise ValueError(f"{match['name']} is not open")
            opened.pop().end = match.start()
        else:
            element = Element(match["name"], match.end())
            opened[-1].children.append(element)
            opened.append(element)
            if len(opened) > _DEPTH:
                raise ValueError("elements are nested too deep")
    if len(opened) > 1:
        raise Incomplete(f"{opened[-1].name} is not closed")
    return root.children


def value_of(element: Element, text: str, schema: Any, types: ArgumentTypes) -> Any:
    """Return the value of an element, typed by its schema: what may be a string is one."""
    inside = text[element.start : element.end]
    kinds = types.kinds(schema)
    if not element.children:
        if not inside.strip() and "string" not in kinds:
            return _empty(kinds)
        return types.value(schema, inside)
    if "string" in kinds and kinds != types.kinds(True):
        return inside
    listed = all(child.name == ITEM for child in element.children)
    if listed and "array" in kinds:
        items = _first(types, schema, "items")
        return [value_of(child, text, items, types) for child in element.children]
    return {
        child.name: value_of(child, text, property_of(types, schema, child.name), types)
        for child in element.children
    }


def _empty(kinds: frozenset[str]) -> Any:
    """Return the value of an element without text, which is no string."""
    if "array" in kinds:
        return []
    return {} if "object" in kinds else None


def property_of(types: ArgumentTypes, schema: Any, name: str) -> Any:
    """Return the schema of a property; True, which allows any value, for an unknown one."""
    for branch in types.branches(schema):
        properties = branch.get("properties")
        if isinstance(properties, dict) and name in properties:
            return properties[name]
    return _first(types, schema, "additionalProperties")


def _first(types: ArgumentTypes, schema: Any, key: str) -> Any:
    """Return the first subschema under a key; True if there is none."""
    for branch in types.branches(schema):
        if isinstance(branch.get(key), dict):
            return branch[key]
    return True
