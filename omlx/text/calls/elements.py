"""MiniMax-M3's calls: values as nested elements, with a token before every tag.

    ]<]minimax[>[<invoke name="look">]<]minimax[>[<at>x]<]minimax[>[</at>]<]minimax[>[</invoke>

A key is an element, and so is each item of a list. What elements cannot express so that it is read
back by its schema is written as JSON inside of its element: unions of objects, objects with keys
that the schema does not name, circular references.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import regex

from omlx.text.calls.format import (
    NAME,
    CallFormat,
    Incomplete,
    Notation,
    Tools,
    alternatives_of,
    embedded,
    repeated,
)
from omlx.text.calls.tag_grammar import Syntax, value_rule
from omlx.text.calls.values import ArgumentTypes, argument_types, parse_json

ITEM: Final = "item"
_DEPTH: Final = 64


@dataclass(slots=True)
class Element:
    """`start` and `end` delimit what is inside of its tags."""

    name: str
    start: int
    end: int = 0
    children: list[Element] = field(default_factory=list)


def elements(text: str, tag: regex.Pattern[str]) -> list[Element]:
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
            return [] if "array" in kinds else {} if "object" in kinds else None
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


def property_of(types: ArgumentTypes, schema: Any, name: str) -> Any:
    """Return the schema of a property; True, which allows any value, for an unknown one."""
    for branch in types.branches(schema):
        properties = branch.get("properties")
        if isinstance(properties, dict) and name in properties:
            return properties[name]
    return _first(types, schema, "additionalProperties")


def _first(types: ArgumentTypes, schema: Any, key: str) -> Any:
    for branch in types.branches(schema):
        if isinstance(branch.get(key), dict):
            return branch[key]
    return True


_NAME: Final = re.compile(r"[^<>\s/]+")
_NOTES: Final = frozenset({"title", "description", "default", "examples", "$comment", "$schema"})
_KEYS: Final[Mapping[str, Collection[str]]] = {
    "object": {"type", "properties", "required", "additionalProperties"},
    "array": {"type", "items", "minItems", "maxItems"},
}
"""Keywords of objects and of lists that elements express."""
_DEFINITIONS: Final = frozenset({"$defs", "definitions", "x-guidance"})


@dataclass(frozen=True, slots=True)
class ElementArguments:
    """Arguments as elements; `ender` is the token before every tag."""

    ender: str

    def rules(
        self,
        schema: Mapping[str, Any] | None,
        rule: str,
        notation: Notation,
    ) -> Iterator[str]:
        token = notation.literal(self.ender)
        if schema is None:
            yield f"{rule}: (/(?s:.+)/? {token} {rule}_tag)* /(?s:.+)/?"
            yield rf"{rule}_tag: {rule.upper()}_TAG"
            yield rf"{rule.upper()}_TAG: /<\/?[^<>\s\/]+>/ & ~/<\/invoke>/"
            return
        objects = alternatives_of(schema, notation)
        rules = _Rules(objects[0], rule, Syntax(f"{{value}}{self.ender}", notation))
        members = None
        if len(objects) == 1:
            members = rules.members(objects[0], frozenset())
        if members is None:
            yield f"{rule}: %json {json.dumps(embedded(schema, schema))}"
            return
        yield from rules.rules
        yield f"{rule}: {members}"

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


class _Rules:
    """Rules for the values of one function's arguments, each with the token behind it."""

    def __init__(self, root: Mapping[str, Any], rule: str, syntax: Syntax) -> None:
        self.rules: list[str] = []
        self._root = root
        self._rule = rule
        self._syntax = syntax
        self._count = 0

    def members(self, schema: Mapping[str, Any], seen: frozenset[str]) -> str | None:
        """Return the term for the members of an object; None if elements cannot express it.

        `seen` are the references that lead here.
        """
        properties = schema.get("properties", {})
        required = schema.get("required", ())
        if not _expressible("object", schema) or not set(required) <= set(properties):
            return None
        if not properties and schema.get("additionalProperties") is not False:
            return None
        terms = []
        for name, value in properties.items():
            if _NAME.fullmatch(name) is None or value is False:
                return None
            needed = "" if name in required else "?"
            terms.append(self._element(name, value, seen) + needed)
        return " ".join(terms) or '""'

    def _element(self, name: str, schema: Any, seen: frozenset[str]) -> str:
        rule = self._new_rule()
        # Two terms: as one, the lexer would take it for longer than the end of the list.
        literal = self._syntax.literal
        opens = f"{literal(self._syntax.behind)} {literal(f'<{name}>')}"
        closes = literal(f"</{name}>")
        self.rules.append(f"{rule}: {opens} {self._value(schema, seen)} {closes}")
        return rule

    def _value(self, schema: Any, seen: frozenset[str]) -> str:
        """Return the rule for a value and the token behind it."""
        plain, null, seen = self._plain(schema, seen)
        rule = self._new_rule()
        inside = None
        kinds = ArgumentTypes(self._root).kinds(plain)
        if kinds == {"object"}:
            inside = self.members(plain, seen)
        elif kinds == {"array"} and _expressible("array", plain):
            inside = repeated(self._element(ITEM, plain.get("items", True), seen), '""', plain)
        if inside is None:
            self.rules += value_rule(self._syntax, self._root, schema, rule)
            return rule
        token = self._syntax.literal(self._syntax.behind)
        also = f' | "null" {token}' if null else ""
        self.rules.append(f"{rule}: {inside} {token}{also}")
        return rule

    def _plain(
        self, schema: Any, seen: frozenset[str]
    ) -> tuple[Mapping[str, Any], bool, frozenset[str]]:
        """Return a schema without references and without the alternative null, whether it had that,
        and the references seen; an empty schema for one that needs more than that.
        """
        null = False
        types = ArgumentTypes(self._root)
        while isinstance(schema, Mapping):
            rest = {key: value for key, value in schema.items() if key not in _NOTES}
            reference = rest.pop("$ref", None)
            options = rest.pop("anyOf", None) or rest.pop("oneOf", None)
            parts = rest.pop("allOf", None)
            if reference is None and options is None and parts is None:
                if isinstance(rest.get("type"), list) and "null" in rest["type"]:
                    null = True
                    rest["type"] = [kind for kind in rest["type"] if kind != "null"]
                return rest, null, seen
            if rest.keys() - _DEFINITIONS:
                break
            if isinstance(reference, str) and options is None and parts is None:
                if reference in seen:
                    break
                seen = seen | {reference}
                schema = types.resolve(reference)
            elif isinstance(parts, list) and len(parts) == 1 and reference is options is None:
                schema = parts[0]
            elif isinstance(options, list) and reference is parts is None:
                others = [option for option in options if types.kinds(option) != {"null"}]
                null = null or len(others) < len(options)
                if len(others) != 1:
                    break
                schema = others[0]
            else:
                break
        return {}, null, seen

    def _new_rule(self) -> str:
        self._count += 1
        return f"{self._rule}_part{self._count}"


def _expressible(kind: str, schema: Mapping[str, Any]) -> bool:
    return not schema.keys() - _KEYS[kind] - _NOTES - _DEFINITIONS


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
