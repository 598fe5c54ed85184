"""Gemma's and LFM2's calls: arguments in brackets, in syntaxes that are no JSON.

    <|tool_call>call:look{at:<|"|>x<|"|>,days:3,tags:[<|"|>a<|"|>]}<tool_call|>
    <|tool_call_start|>[look(at="x")]<|tool_call_end|>

Gemma's strings stand between quotes that are one token, without escapes. LFM2's template writes
strings without escapes too, so a string ends at the first quote that the next argument or the end
of the call follows.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import regex

from omlx.text.calls.arguments import (
    Notation,
    ValueRules,
    alternatives_of,
    embedded,
    in_alternatives,
    in_order,
    is_open,
    members,
    repeated,
    unheld_of_object,
)
from omlx.text.calls.format import NAME, CallFormat, Incomplete, Tools
from omlx.text.calls.repair import JsonRepair
from omlx.text.calls.tag_grammar import Syntax, bounds_of
from omlx.text.calls.values import ArgumentTypes, argument_types, parse_json, properties

_GEMMA_NAME: Final = regex.compile(r"[\s,]*(?:call:\s*)?([\w.:/-]+)\s*(?=\{)")
_JSON_STRING: Final = regex.compile(r'"(?:[^"\\]|\\.)*"', regex.DOTALL)
_SPACE: Final = regex.compile(r"\s*")
_GEMMA_KEY: Final = regex.compile(r"[^{}\[\],:]*")
_BARE: Final = regex.compile(r"[^{}\[\],]*")
_PYTHON: Final = {"None": "null", "True": "true", "False": "false"}
_MAX_DEPTH: Final = 64
_ANY: Final = ArgumentTypes({})


class _GemmaScanner:
    """Parser of one text; `quote` stands around strings, and so may quotes of JSON. Raises
    ValueError, and Incomplete where the text ends inside a call.
    """

    def __init__(self, text: str, quote: str) -> None:
        self._text = text
        self._quote = quote
        self._at = 0

    def calls(self, tools: Tools) -> list[dict[str, Any]]:
        calls = []
        while (name := _GEMMA_NAME.match(self._text, self._at)) is not None:
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
                key = self._word(_GEMMA_KEY)
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
        """Skip a token and the white space before it, if it is next."""
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
            values = _GemmaRules(part, name, notation, self)
            values.rules.append(f"{name}: {values.members(part, name)}")
            yield from values.rules

        alternatives = alternatives_of(schema or {}, notation)
        yield from in_alternatives(alternatives, rule, of_object)

    def text(self, arguments: Mapping[str, Any]) -> str:
        return ",".join(f"{self.key(name)}:{self.value(arguments[name])}" for name in arguments)

    def key(self, name: str) -> str:
        """Return the text of a key."""
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


class _GemmaRules(ValueRules):
    def __init__(
        self, root: Mapping[str, Any], rule: str, notation: Notation, syntax: GemmaArguments
    ) -> None:
        super().__init__(root, rule, notation)
        self._syntax = syntax
        self._texts = Syntax("{value}" + syntax.ender, notation)

    def members(self, schema: Mapping[str, Any], rule: str) -> str:
        """Return the term for the members of an object."""
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

    def string(self, schema: Mapping[str, Any]) -> str:
        bounds = bounds_of(self.notation, ArgumentTypes(self.root), schema)
        ender = self.literal(self._syntax.ender)
        if all(each.free for each in bounds):
            return f"{ender} text"
        texts = []
        for each in bounds:
            texts.append(f"{self.name}_text{len(self.rules)}")
            self.rules += self._texts.texts(texts[-1], bounds=each)
        return f"{ender} ({' | '.join(texts)})"

    def array(self, schema: Mapping[str, Any], rule: str) -> str:
        items = repeated(self.value(schema.get("items", {})), self.literal(","), schema)
        return f"{self.literal('[')} {items} {self.literal(']')}"

    def object(self, schema: Mapping[str, Any], rule: str) -> str:
        return f"{self.literal('{')} {self.members(schema, rule)} {self.literal('}')}"

    def constant(self, value: Any) -> str:
        return self.literal(self._syntax.value(value))


def _gemma(start: str, end: str, quote: str) -> CallFormat:
    return CallFormat(
        start=start,
        end=end,
        begins=rf"\s*(?:call:\s*)?{NAME}\s*\{{",
        read=lambda text, tools: _GemmaScanner(text, quote).calls(tools),
        written="call:{name}{{arguments}}",
        syntax=GemmaArguments(quote),
    )


GEMMA_4: Final = _gemma("<|tool_call>", "<tool_call|>", '<|"|>')
FUNCTION_GEMMA: Final = _gemma("<start_function_call>", "<end_function_call>", "<escape>")


_NAME: Final = regex.compile(r"\s*([\w.:/-]+)\s*\(\s*")
_KEY: Final = regex.compile(r"([\w.-]+)\s*=\s*")
_AFTER: Final = r"\s*(?:,\s*(?=[\w.-]+\s*=|[\"'\[{\w+-])|(?=\)\s*[,\]]))"
_SEPARATOR: Final = regex.compile(_AFTER)
_STRINGS: Final = {
    quote: (
        regex.compile(rf"(?<!\\)(?:\\\\)*(?P<quote>{quote})(?:{_AFTER})"),
        regex.compile(rf"(?P<quote>{quote})(?:{_AFTER})"),
    )
    for quote in "\"'"
}
"""Patterns of the end of a string: a quote without a backslash before it, else any."""
_WORD: Final = regex.compile(r"[^,()\[\]{}]+")
_NEXT: Final = regex.compile(r"\)\s*([,\]])")


class _PythonScanner:
    """Parser of a list of calls. Raises ValueError, and Incomplete where the text ends inside."""

    def __init__(self, text: str, tools: Tools) -> None:
        self._text = text.strip()
        if not self._text.startswith("["):  # a call alone
            self._text = f"[{self._text}]"
        self._tools = tools
        self._at = 1

    def calls(self) -> Iterator[dict[str, Any]]:
        following = ","
        while following == ",":
            name = self._match(_NAME)
            yield {"name": name[1], "arguments": self._arguments(name[1])}
            following = self._match(_NEXT)[1]
        if self._text[self._at :].strip():
            raise ValueError("text after the calls")

    def _arguments(self, function: str) -> dict[str, Any]:
        """Parse arguments up to the bracket that closes them; those without a name are the schema's
        next.
        """
        names = iter(properties(self._tools, function))
        types = argument_types(self._tools, function)
        arguments: dict[str, Any] = {}
        while not self._text.startswith(")", self._at):
            key = _KEY.match(self._text, self._at)
            if key is not None:
                self._at = key.end()
                name = key[1]
            else:
                name = next(names, "")
                if not name or name in arguments:
                    raise ValueError("an argument without a name")
            value = self._value()
            if isinstance(value, _Bare):
                value = types.convert(name, value)
            arguments[name] = value
        return arguments

    def _value(self) -> Any:
        """Parse a value and the comma after it."""
        character = self._text[self._at : self._at + 1]
        if not character:
            raise Incomplete("a value")
        if character in _STRINGS:
            return self._string(character)
        if character in "[{":
            repair = JsonRepair()
            text = repair.feed(self._text[self._at :])
            if not repair.ended:
                raise Incomplete("a list or an object")
            self._at = len(self._text) - len(repair.rest)
            value: Any = parse_json(text)
        else:
            value = _Bare(self._match(_WORD)[0].strip())
        self._match(_SEPARATOR)
        return value

    def _string(self, quote: str) -> str:
        ends = (pattern.search(self._text, self._at + 1) for pattern in _STRINGS[quote])
        end = next(filter(None, ends), None)
        if end is None:
            raise Incomplete("a string")
        raw = self._text[self._at + 1 : end.start("quote")]
        self._at = end.end()
        with suppress(ValueError, SyntaxError):
            escaped = raw.replace("\n", "\\n").replace("\r", "\\r")
            return str(ast.literal_eval(f"{quote}{escaped}{quote}"))
        return raw

    def _match(self, pattern: regex.Pattern[str]) -> regex.Match[str]:
        found = pattern.match(self._text, self._at, partial=True)
        if found is None:
            raise ValueError("no call")
        if found.partial:
            raise Incomplete("a call")
        self._at = found.end()
        return found


class _Bare(str):
    """A value without quotes."""


class PythonArguments:
    """Arguments `key=value`, each value as JSON."""

    ender = ""

    def rules(
        self, schema: Mapping[str, Any] | None, rule: str, notation: Notation
    ) -> Iterator[str]:
        of_object = partial(self._object, notation)
        yield from in_alternatives(alternatives_of(schema or {}, notation), rule, of_object)

    def _object(self, notation: Notation, schema: Mapping[str, Any], rule: str) -> Iterator[str]:
        """Yield the rule for the arguments of an object, and those that it needs."""
        literal = notation.literal
        for detail in unheld_of_object(schema):
            notation.unheld(detail)
        if is_open(schema):
            other = schema.get("additionalProperties", {})
            any_value = json.dumps(embedded(other if isinstance(other, Mapping) else {}, schema))
            value = f"/[a-zA-Z_][a-zA-Z0-9_]*/ {literal('=')} %json {any_value}"
            yield f"{rule}: ({rule}_any ({literal(', ')} {rule}_any)*)?"
            yield f"{rule}_any: {value}"
            return
        parts = []
        for number, (name, value, needed) in enumerate(members(schema)):
            if _KEY.fullmatch(f"{name}=") is None:
                raise ValueError(f"the parameter '{name}' cannot be written as a keyword")
            value_schema = embedded(value if isinstance(value, Mapping) else {}, schema)
            yield f"{rule}_{number}: {literal(f'{name}=')} %json {json.dumps(value_schema)}"
            parts.append((f"{rule}_{number}", needed))
        yield from in_order(parts, literal(", "), rule)

    def text(self, arguments: Mapping[str, Any]) -> str:
        written = (
            f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in arguments.items()
        )
        return ", ".join(written)


LFM2: Final = CallFormat(
    start="<|tool_call_start|>",
    end="<|tool_call_end|>",
    begins=r"\s*\[?\s*[\w.:/-]+\(",
    read=lambda text, tools: list(_PythonScanner(text, tools).calls()),
    json=False,
    written="{name}({arguments})",
    syntax=PythonArguments(),
    together=True,
    section=("[", "]"),
    separator=", ",
)
