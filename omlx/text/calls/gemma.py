"""Gemma 4 and FunctionGemma, which write objects without quotes around their keys.

    <|tool_call>call:look{at:<|"|>x<|"|>,days:3,tags:[<|"|>a<|"|>]}<tool_call|>

Strings stand between quotes that are one token, without escapes: a string cannot hold that token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import regex

from omlx.text.calls.format import (
    NAME,
    NUMBER_BOUNDS,
    CallFormat,
    Incomplete,
    Notation,
    Tools,
    alternatives_of,
    in_alternatives,
    in_order,
    is_open,
    members,
    repeated,
    unheld_of_object,
)
from omlx.text.calls.tag_grammar import Syntax, bounds_of
from omlx.text.calls.values import ArgumentTypes, argument_types

_NUMBER: Final = r"/-?(0|[1-9][0-9]{0,99})(\.[0-9]+)?([eE][+\-]?[0-9]{1,2})?/"
_INTEGER: Final = "/-?(0|[1-9][0-9]{0,999})/"
_ANNOTATIONS: Final = frozenset({"title", "description", "default", "examples", "$comment"})
_NAME: Final = regex.compile(r"[\s,]*(?:call:\s*)?([\w.:/-]+)\s*(?=\{)")
_JSON_STRING: Final = regex.compile(r'"(?:[^"\\]|\\.)*"', regex.DOTALL)
_SPACE: Final = regex.compile(r"\s*")
_KEY: Final = regex.compile(r"[^{}\[\],:]*")
_BARE: Final = regex.compile(r"[^{}\[\],]*")
_PYTHON: Final = {"None": "null", "True": "true", "False": "false"}
_MAX_DEPTH: Final = 64
_ANY: Final = ArgumentTypes({})


class _Scanner:
    """Parser of one text; `quote` stands around strings, and so may quotes of JSON. Raises
    ValueError, and Incomplete where the text ends inside a call.
    """

    def __init__(self, text: str, quote: str) -> None:
        self._text = text
        self._quote = quote
        self._at = 0

    def calls(self, tools: Tools) -> list[dict[str, Any]]:
        calls = []
        while (name := _NAME.match(self._text, self._at)) is not None:
            self._at = name.end()
            if not self._skip("{"):
                raise ValueError("arguments are an object")
            arguments = self._members(argument_types(tools, name[1]), 0)
            calls.append({"name": name[1], "arguments": arguments})
        if self._text[self._at :].strip():
            raise ValueError("text after the call")
        return calls

    def _members(self, types: ArgumentTypes, depth: int) -> dict[str, Any]:
        """Parse the members of an object after its bracket; `types` types bare words."""
        members: dict[str, Any] = {}
        while not self._skip("}"):
            if self._skip(self._quote):
                key = self._string()
            elif self._text.startswith('"', self._at):
                key = self._json_string()
            else:
                key = self._word(_KEY)
            if not self._skip(":"):
                raise ValueError("a key without a value")
            members[key] = self._value(types, key, depth)
            self._skip(",")
        return members

    def _value(self, types: ArgumentTypes, key: str, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise ValueError("nested too deep")
        if self._skip(self._quote):
            return self._string()
        if self._text.startswith('"', self._at):
            return self._json_string()
        if self._skip("{"):
            return self._members(_ANY, depth + 1)
        if self._skip("["):
            items = []
            while not self._skip("]"):
                items.append(self._value(_ANY, "", depth + 1))
                self._skip(",")
            return items
        word = self._word(_BARE)
        return types.convert(key, _PYTHON.get(word, word))

    def _skip(self, token: str) -> bool:
        space = _SPACE.match(self._text, self._at)
        self._at = space.end() if space else self._at
        if self._at == len(self._text):
            raise Incomplete("the end")
        if not self._text.startswith(token, self._at):
            return False
        self._at += len(token)
        return True

    def _string(self) -> str:
        end = self._text.find(self._quote, self._at)
        if end < 0:
            raise Incomplete("a string")
        text, self._at = self._text[self._at : end], end + len(self._quote)
        return text

    def _json_string(self) -> str:
        found = _JSON_STRING.match(self._text, self._at)
        if found is None:
            raise Incomplete("a string")
        self._at = found.end()
        return str(json.loads(found[0], strict=False))

    def _word(self, pattern: regex.Pattern[str]) -> str:
        word = pattern.match(self._text, self._at)
        if word is None or not word[0]:
            raise ValueError("a value is missing")
        self._at = word.end()
        return str(word[0]).strip()


_PLAIN_KEY: Final = re.compile(r"[\w.-]+")


@dataclass(frozen=True, slots=True)
class GemmaArguments:
    """Members of an object; `ender` stands around strings."""

    ender: str

    def rules(
        self, schema: Mapping[str, Any] | None, rule: str, notation: Notation
    ) -> Iterator[str]:
        def of_object(part: Mapping[str, Any], name: str) -> Iterator[str]:
            values = _Rules(part, name, notation, self)
            values.rules.append(f"{name}: {values.members(part, name)}")
            yield from values.rules

        alternatives = alternatives_of(schema or {}, notation)
        yield from in_alternatives(alternatives, rule, of_object)

    def text(self, arguments: Mapping[str, Any]) -> str:
        return ",".join(f"{self.key(name)}:{self.value(arguments[name])}" for name in arguments)

    def key(self, name: str) -> str:
        if _PLAIN_KEY.fullmatch(name):
            return name
        return self._quoted(name)

    def value(self, value: Any) -> str:
        """Return the text of a value. Raises ValueError for a text that holds the quote."""
        if isinstance(value, str):
            return self._quoted(value)
        if isinstance(value, list):
            return f"[{','.join(map(self.value, value))}]"
        if isinstance(value, Mapping):
            return "{" + self.text(value) + "}"
        return json.dumps(value)

    def _quoted(self, text: str) -> str:
        return f"{self.ender}{text}{self.ender}"


class _Rules:
    """Rules for the values of one function's arguments, a rule for each schema.

    Raises ValueError for a schema that cannot be written.
    """

    def __init__(
        self, root: Mapping[str, Any], rule: str, notation: Notation, syntax: GemmaArguments
    ) -> None:
        self.root = root
        self.notation = notation
        self.literal = notation.literal
        self.rules: list[str] = []
        self.name = rule
        self._known: dict[str, str] = {}
        self._syntax = syntax
        self._texts = Syntax("{value}" + syntax.ender, notation)

    def value(self, schema: Any) -> str:
        """Return the name of the rule for a value."""
        schema = _plain(schema)
        key = json.dumps(schema, sort_keys=True)
        if key not in self._known:
            rule = self._known[key] = f"{self.name}_value{len(self._known)}"
            self.rules.append(f"{rule}: {self.alternatives(schema, rule)}")
        return self._known[key]

    def alternatives(self, schema: Mapping[str, Any], rule: str) -> str:
        terms = list(self._terms(schema, rule))
        if not terms:
            raise ValueError("nothing has this form")
        return " | ".join(terms)

    def _terms(self, schema: Mapping[str, Any], rule: str) -> Iterator[str]:
        rest = dict(schema)
        if "const" in schema or "enum" in schema:
            for value in schema.get("enum", [schema.get("const")]):
                if "const" not in schema or value == schema["const"]:
                    yield self.literal(self._syntax.value(value))
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
        # Types know schemas by their identity, and these are made for a moment.
        kinds = ArgumentTypes(self.root).kinds(schema)
        if "number" in kinds:
            kinds -= {"integer"}
        return sorted(kinds)

    def _kind(self, kind: str, schema: Mapping[str, Any], rule: str) -> str:
        match kind:
            case "string":
                return self._string(schema)
            case "array":
                if "prefixItems" in schema or isinstance(schema.get("items"), list):
                    raise ValueError("lists whose items differ by place are not supported")
                items = repeated(self.value(schema.get("items", {})), self.literal(","), schema)
                return f"{self.literal('[')} {items} {self.literal(']')}"
            case "object":
                return f"{self.literal('{')} {self.members(schema, rule)} {self.literal('}')}"
            case "boolean":
                return '("true" | "false")'
            case "null":
                return '"null"'
        bounds = {key: schema[key] for key in NUMBER_BOUNDS if key in schema}
        if bounds:
            return f"%json {json.dumps({'type': kind, **bounds})}"
        return _NUMBER if kind == "number" else _INTEGER

    def members(self, schema: Mapping[str, Any], rule: str) -> str:
        comma, colon = self.literal(","), self.literal(":")
        for detail in unheld_of_object(schema):
            self.notation.unheld(detail)
        if is_open(schema):
            other = self.value(schema.get("additionalProperties", {}))
            member = f"/[a-zA-Z_][a-zA-Z0-9_.\\-]*/ {colon} {other}"
            return f"({member} ({comma} {member})*)?"
        parts: list[tuple[str, bool]] = []
        for name, value, needed in members(schema):
            part = f"{rule}_member{len(parts)}"
            key = self.literal(self._syntax.key(name))
            self.rules.append(f"{part}: {key} {colon} {self.value(value)}")
            parts.append((part, needed))
        self.rules += in_order(parts, comma, f"{rule}_members")
        return f"{rule}_members"

    def _string(self, schema: Mapping[str, Any]) -> str:
        bounds = bounds_of(self.notation, ArgumentTypes(self.root), schema)
        ender = self.literal(self._syntax.ender)
        if all(each.free for each in bounds):
            return f"{ender} text"
        texts = []
        for each in bounds:
            texts.append(f"{self.name}_text{len(self.rules)}")
            self.rules += self._texts.texts(texts[-1], bounds=each)
        return f"{ender} ({' | '.join(texts)})"


def _plain(schema: Any) -> Mapping[str, Any]:
    if schema is False:
        raise ValueError("nothing has this form")
    if not isinstance(schema, Mapping):
        return {}
    plain: dict[str, Any] = {key: schema[key] for key in schema if key not in _ANNOTATIONS}
    return plain


def _merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    both = {**first, **second}
    if "properties" in first and "properties" in second:
        both["properties"] = {**first["properties"], **second["properties"]}
    if "enum" in first and "enum" in second:
        both["enum"] = [value for value in first["enum"] if value in second["enum"]]
    if "required" in first and "required" in second:
        both["required"] = list(dict.fromkeys([*first["required"], *second["required"]]))
    return both


def _gemma(start: str, end: str, quote: str) -> CallFormat:
    return CallFormat(
        start=start,
        end=end,
        begins=rf"\s*(?:call:\s*)?{NAME}\s*\{{",
        read=lambda text, tools: _Scanner(text, quote).calls(tools),
        written="call:{name}{{arguments}}",
        syntax=GemmaArguments(quote),
    )


GEMMA_4: Final = _gemma("<|tool_call>", "<tool_call|>", '<|"|>')
FUNCTION_GEMMA: Final = _gemma("<start_function_call>", "<end_function_call>", "<escape>")
