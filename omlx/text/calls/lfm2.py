"""LFM2: `<|tool_call_start|>[look(at="x")]<|tool_call_end|>`.

The template of this family writes strings without escapes, so a string ends at the first quote that
the next argument or the end of the call follows.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

import regex

from omlx.text.calls.format import (
    CallFormat,
    Incomplete,
    Notation,
    Tools,
    alternatives_of,
    embedded,
    in_alternatives,
    in_order,
    is_open,
    members,
    unheld_of_object,
)
from omlx.text.calls.repair import JsonRepair
from omlx.text.calls.values import argument_types, parse_json, properties

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


class _Scanner:
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
    read=lambda text, tools: list(_Scanner(text, tools).calls()),
    json=False,
    written="{name}({arguments})",
    syntax=PythonArguments(),
    together=True,
    section=("[", "]"),
    separator=", ",
)
