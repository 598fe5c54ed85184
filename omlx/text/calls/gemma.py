"""Gemma 4 and FunctionGemma, which write objects without quotes around their keys.

    <|tool_call>call:look{at:<|"|>x<|"|>,days:3,tags:[<|"|>a<|"|>]}<tool_call|>

Each quote around a string is one token, and there are no escapes: a string cannot hold that token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import regex

from omlx.text.calls.arguments import ArgumentRules, Notation, object_rules, repeated
from omlx.text.calls.format import NAME, CallFormat, Incomplete, Tools
from omlx.text.calls.values import argument_types, convert
from omlx.text.schema import NOTES, NUMBER_BOUNDS, Schema, SchemaTypes

_NUMBER: Final = r"/-?(0|[1-9][0-9]{0,99})(\.[0-9]+)?([eE][+\-]?[0-9]{1,2})?/"
_INTEGER: Final = "/-?(0|[1-9][0-9]{0,999})/"
_NAME: Final = regex.compile(r"[\s,]*(?:call:\s*)?([\w.:/-]+)\s*(?=\{)")
_JSON_STRING: Final = regex.compile(r'"(?:[^"\\]|\\.)*"', regex.DOTALL)
_SPACE: Final = regex.compile(r"\s*")
_KEY: Final = regex.compile(r"[^{}\[\],:]*")
_BARE: Final = regex.compile(r"[^{}\[\],]*")
_PYTHON: Final = {"None": "null", "True": "true", "False": "false"}
_MAX_DEPTH: Final = 64
_ANY: Final = SchemaTypes({})


class _Scanner:
    """Parser of a text; strings are in `quote` or in JSON's quotes.

    Raises ValueError, and Incomplete if the text ends inside a call.
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

    def _members(self, types: SchemaTypes, depth: int) -> dict[str, Any]:
        # `types` types bare words.
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

    def _value(self, types: SchemaTypes, key: str, depth: int) -> Any:
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
        return convert(types, key, _PYTHON.get(word, word))

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
    """Arguments as members of an object; `ender` is the quote around strings."""

    ender: str

    def rules(self, schema: Schema | None, rule: str, notation: Notation) -> Iterator[str]:
        alternatives = notation.alternatives_of(schema or {})
        yield from object_rules(alternatives, rule, partial(GemmaRules, self, notation))

    def text(self, arguments: Mapping[str, Any]) -> str:
        return ",".join(f"{self.key(name)}:{self.value(arguments[name])}" for name in arguments)

    def key(self, name: str) -> str:
        return name if _PLAIN_KEY.fullmatch(name) else f"{self.ender}{name}{self.ender}"

    def value(self, value: Any) -> str:
        match value:
            case str():
                return f"{self.ender}{value}{self.ender}"
            case list():
                return f"[{','.join(map(self.value, value))}]"
            case Mapping():
                return f"{{{self.text(value)}}}"
        return json.dumps(value)


class GemmaRules(ArgumentRules):
    """Rules for nested values, one for each schema."""

    separator = ","

    def __init__(self, syntax: GemmaArguments, notation: Notation, root: Schema, rule: str) -> None:
        super().__init__(notation, root, rule)
        self._syntax = syntax
        self._known: dict[str, str] = {}

    def member(self, name: str, schema: Any) -> str:
        key = self.literal(self._syntax.key(name))
        return self.add("member", f"{key} {self.literal(':')} {self.value(schema)}")

    def other(self, schema: Any) -> str:
        return f"/[a-zA-Z_][a-zA-Z0-9_.\\-]*/ {self.literal(':')} {self.value(schema)}"

    def value(self, schema: Any) -> str:
        schema = _plain(schema)
        key = json.dumps(schema, sort_keys=True)
        if key not in self._known:
            # Known before it is written: a schema may refer to itself.
            name = self._known[key] = f"{self._rule}_schema{len(self._known)}"
            terms = " | ".join(self._terms(schema))
            if not terms:
                raise ValueError("nothing has this form")
            self.rules.append(f"{name}: {terms}")
        return self._known[key]

    def _terms(self, schema: Schema) -> Iterator[str]:
        """Yield a term for each alternative: a given value, another schema, or a type."""
        rest = dict(schema)
        if "const" in schema or "enum" in schema:
            for value in schema.get("enum", [schema.get("const")]):
                if "const" not in schema or value == schema["const"]:
                    yield self.literal(self._syntax.value(value))
        elif "$ref" in schema:
            target = self.types.resolve(rest.pop("$ref"))
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
                yield self._kind(kind, schema)

    def _resolved(self, schema: Any) -> Schema:
        rest = dict(_plain(schema))
        if "$ref" not in rest:
            return rest
        return _merged(self._resolved(self.types.resolve(rest.pop("$ref"))), rest)

    def _kinds(self, schema: Schema) -> Collection[str]:
        if "type" not in schema and "properties" in schema:
            return ("object",)
        if "type" not in schema and "items" in schema:
            return ("array",)
        kinds = self.types.kinds(schema)
        return sorted(kinds - {"integer"} if "number" in kinds else kinds)

    def _kind(self, kind: str, schema: Schema) -> str:
        match kind:
            case "string":
                return self._string(schema)
            case "array":
                if "prefixItems" in schema or isinstance(schema.get("items"), list):
                    raise ValueError("lists whose items differ by place are not supported")
                items = repeated(self.value(schema.get("items", {})), self.literal(","), schema)
                return f"{self.literal('[')} {items} {self.literal(']')}"
            case "object":
                return f"{self.literal('{')} {self.members(schema)} {self.literal('}')}"
            case "boolean":
                return '("true" | "false")'
            case "null":
                return '"null"'
        bounds = {key: schema[key] for key in NUMBER_BOUNDS if key in schema}
        if bounds:
            return f"%json {json.dumps({'type': kind, **bounds})}"
        return _NUMBER if kind == "number" else _INTEGER

    def _string(self, schema: Schema) -> str:
        quote = self.literal(self._syntax.ender)
        alternatives = self.notation.bounds_of(self.types, schema)
        if all(bounds.free for bounds in alternatives):
            return f"{quote} text"
        texts = []
        for bounds in alternatives:
            texts.append(self.new_name("text"))
            self.rules += self.notation.texts(self._syntax.ender, texts[-1], bounds=bounds)
        return f"{quote} ({' | '.join(texts)})"


def _plain(schema: Any) -> Schema:
    if schema is False:
        raise ValueError("nothing has this form")
    if not isinstance(schema, Mapping):
        return {}
    return {key: schema[key] for key in schema if key not in NOTES}


def _merged(first: Schema, second: Schema) -> dict[str, Any]:
    both = {**first, **second}
    if "properties" in first and "properties" in second:
        both["properties"] = {**first["properties"], **second["properties"]}
    if "enum" in first and "enum" in second:
        both["enum"] = [value for value in first["enum"] if value in second["enum"]]
    if "required" in first and "required" in second:
        both["required"] = list(dict.fromkeys([*first["required"], *second["required"]]))
    return both


def _gemma(parser: str, start: str, end: str, quote: str) -> CallFormat:
    return CallFormat(
        start=start,
        end=end,
        parser=parser,
        begins=rf"\s*(?:call:\s*)?{NAME}\s*\{{",
        read=lambda text, tools: _Scanner(text, quote).calls(tools),
        written="call:{name}{{arguments}}",
        syntax=GemmaArguments(quote),
    )


GEMMA_4: Final = _gemma("gemma4", "<|tool_call>", "<tool_call|>", '<|"|>')
FUNCTION_GEMMA: Final = _gemma(
    "function_gemma", "<start_function_call>", "<end_function_call>", "<escape>"
)
