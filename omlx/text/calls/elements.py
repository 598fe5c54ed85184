"""MiniMax-M3's calls: values as nested elements, with a token before every tag.

    ]<]minimax[>[<invoke name="look">]<]minimax[>[<at>x]<]minimax[>[</at>]<]minimax[>[</invoke>

A key is an element, and so is each item of a list. Values without an unambiguous form as elements
are written as JSON inside of their element: unions of objects, objects with undeclared keys,
circular references.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import regex

from omlx.text.calls.arguments import Notation, TagArguments, TagRules, object_rules, repeated
from omlx.text.calls.format import NAME, CallFormat, Incomplete, Tools
from omlx.text.calls.values import argument_types, parse_json, typed_value
from omlx.text.schema import COMBINED, NOTES, SHARED, Schema, SchemaTypes, embedded, properties_of

ITEM: Final = "item"
_DEPTH: Final = 64


@dataclass(slots=True)
class Element:
    """Element of a text; `start` and `end` are the indices between the tags."""

    name: str
    start: int
    end: int = 0
    children: list[Element] = field(default_factory=list)


def elements(text: str, tag: regex.Pattern[str]) -> list[Element]:
    """Return the elements of a text. `tag` matches a tag, with groups `name` and `close`.

    Raises ValueError for a tag without its partner, and Incomplete if the text ends inside.
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


def value_of(element: Element, text: str, schema: Any, types: SchemaTypes) -> Any:
    """Return the value of an element, typed by its schema: a string if the schema allows one."""
    inside = text[element.start : element.end]
    kinds = types.kinds(schema)
    if not element.children:
        if not inside.strip() and "string" not in kinds:
            return [] if "array" in kinds else {} if "object" in kinds else None
        return typed_value(types, schema, inside)
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


def property_of(types: SchemaTypes, schema: Any, name: str) -> Any:
    """Return the schema of a property; True, which allows any value, if unknown."""
    for branch in types.branches(schema):
        if name in (properties := properties_of(branch)):
            return properties[name]
    return _first(types, schema, "additionalProperties")


def _first(types: SchemaTypes, schema: Any, key: str) -> Any:
    for branch in types.branches(schema):
        if isinstance(branch.get(key), dict):
            return branch[key]
    return True


_NAME: Final = re.compile(r"[^<>\s/]+")
_KEYS: Final[Mapping[str, Set[str]]] = {
    "object": {"type", "properties", "required", "additionalProperties", *NOTES, *SHARED},
    "array": {"type", "items", "minItems", "maxItems", *NOTES, *SHARED},
}
"""Keywords of objects and of lists that elements express or that have no effect."""


@dataclass(frozen=True, slots=True)
class ElementArguments:
    """Arguments as elements; `ender` is the token before every tag."""

    ender: str

    def rules(self, schema: Schema | None, rule: str, notation: Notation) -> Iterator[str]:
        if schema is None:
            token = notation.literal(self.ender)
            yield f"{rule}: (/(?s:.+)/? {token} {rule}_tag)* /(?s:.+)/?"
            yield rf"{rule}_tag: {rule.upper()}_TAG"
            yield rf"{rule.upper()}_TAG: /<\/?[^<>\s\/]+>/ & ~/<\/invoke>/"
            return
        first, *others = notation.alternatives_of(schema)
        if others or not _has_elements(first):
            yield f"{rule}: %json {json.dumps(embedded(schema, schema))}"
            return
        tags = TagArguments(f"{{value}}{self.ender}")
        yield from object_rules([first], rule, partial(ElementRules, tags, notation))

    def text(self, arguments: Mapping[str, Any]) -> str:
        return "".join(self._element(name, value) for name, value in arguments.items())

    def _element(self, name: str, value: Any) -> str:
        return f"{self.ender}<{name}>{self._inside(value)}{self.ender}</{name}>"

    def _inside(self, value: Any) -> str:
        match value:
            case str():
                return value
            case list():
                return "".join(self._element(ITEM, item) for item in value)
            case Mapping():
                return self.text(value)
        return json.dumps(value)


def _has_elements(schema: Schema) -> bool:
    properties = schema.get("properties", {})
    return (
        schema.keys() <= _KEYS["object"]
        and set(schema.get("required", ())) <= set(properties)
        and (bool(properties) or schema.get("additionalProperties") is False)
        and all(_NAME.fullmatch(name) and part is not False for name, part in properties.items())
    )


class ElementRules(TagRules):
    """Rules for values as elements, each with the token behind it.

    Other values are texts, or JSON, inside of their element.
    """

    _within: frozenset[str] = frozenset()
    """References on the path to the current value."""

    def member(self, name: str, schema: Any) -> str:
        # Two terms: as a single term the lexer would prefer it, as longer, to the end of the list.
        opens = f"{self._closing} {self.literal(f'<{name}>')}"
        return self.add("element", f"{opens} {self.value(schema)} {self.literal(f'</{name}>')}")

    def value(self, schema: Any) -> str:
        """Return the rule for a value and the token behind."""
        before = self._within
        plain, null = self._plain(schema)
        kinds, inside = self.types.kinds(plain), None
        if kinds == {"object"} and _has_elements(plain):
            inside = self.members(plain)
        elif kinds == {"array"} and plain.keys() <= _KEYS["array"]:
            inside = repeated(self.member(ITEM, plain.get("items", True)), '""', plain)
        self._within = before
        if inside is None:
            return super().value(schema)
        also = f' | "null" {self._closing}' if null else ""
        return self.add("value", f"{inside} {self._closing}{also}")

    def _plain(self, schema: Any) -> tuple[Schema, bool]:
        """Return a schema without references and null alternative, and whether null was allowed.

        The schema is empty for other combinations.
        """
        null = False
        while isinstance(schema, Mapping):
            schema = {key: value for key, value in schema.items() if key not in NOTES}
            if not any(key in schema for key in COMBINED):
                if isinstance(schema.get("type"), list) and "null" in schema["type"]:
                    null = True
                    schema["type"] = [kind for kind in schema["type"] if kind != "null"]
                return schema, null
            match [(key, value) for key, value in schema.items() if key not in SHARED]:
                case [("$ref", str(reference))] if reference not in self._within:
                    self._within |= {reference}
                    schema = self.types.resolve(reference)
                case [("allOf", [part])]:
                    schema = part
                case [("anyOf" | "oneOf", [*options])]:
                    others = [part for part in options if self.types.kinds(part) != {"null"}]
                    null = null or len(others) < len(options)
                    if len(others) != 1:
                        break
                    schema = others[0]
                case _:
                    break
        return {}, null


TOKEN: Final = "]<]minimax[>["
_TOKEN: Final = regex.escape(TOKEN)
_TAG: Final = regex.compile(
    rf"{_TOKEN}<(?P<close>/?)(?P<name>[^<>\s/]+)(?:\s+name=[\"']?(?P<function>[^\"'<>]+)[\"']?)?>"
)


def read_elements(text: str, tools: Tools) -> list[dict[str, Any]]:
    """Parse the calls of a section. Raises ValueError."""
    calls = []
    for invoke in elements(text, _TAG):
        opening = _TAG.match(text, text.rfind(TOKEN, 0, invoke.start))
        if invoke.name != "invoke" or opening is None or not opening["function"]:
            raise ValueError("no call")
        name = opening["function"]
        types = argument_types(tools, name)
        inside = text[invoke.start : invoke.end].strip()
        arguments = {}
        if not invoke.children and inside.startswith("{"):
            arguments = parse_json(inside)
        for element in invoke.children:
            schema = property_of(types, types.root, element.name)
            arguments[element.name] = value_of(element, text, schema, types)
        calls.append({"name": name, "arguments": arguments})
    if not calls:
        raise ValueError("no call")
    return calls


MINIMAX_M3: Final = CallFormat(
    start=f"{TOKEN}<tool_call>",
    end=f"{TOKEN}</tool_call>",
    templates=((TOKEN, "<tool_call>"),),
    begins=rf"\s*{_TOKEN}<invoke name=[\"']?{NAME}",
    read=read_elements,
    written=f'{TOKEN}<invoke name="{{name}}">{{arguments}}{TOKEN}</invoke>\n',
    syntax=ElementArguments(TOKEN),
    together=True,
    section=("\n", ""),
)
