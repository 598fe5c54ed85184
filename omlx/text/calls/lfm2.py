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

from omlx.text.calls.arguments import ArgumentRules, Notation, object_rules
from omlx.text.calls.format import CallFormat, Incomplete, Tools
from omlx.text.calls.repair import JsonRepair
from omlx.text.calls.values import argument_types, convert, parse_json, properties
from omlx.text.schema import Schema, embedded

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
    """Parser of a list of calls. Raises ValueError, and Incomplete if the text ends inside."""

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
        """Parse arguments up to the bracket that closes them.

        Arguments without a name get the schema's next names.
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
                value = convert(types, name, value)
            arguments[name] = value
        return arguments

    def _value(self) -> Any:
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
    """Value without quotes."""


class PythonArguments:
    """Arguments `key=value`, each value as JSON."""

    ender = ""

    def rules(self, schema: Schema | None, rule: str, notation: Notation) -> Iterator[str]:
        alternatives = notation.alternatives_of(schema or {})
        yield from object_rules(alternatives, rule, partial(PythonRules, notation))

    def text(self, arguments: Mapping[str, Any]) -> str:
        written = (
            f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in arguments.items()
        )
        return ", ".join(written)


class PythonRules(ArgumentRules):
    separator = ", "

    def member(self, name: str, schema: Any) -> str:
        if _KEY.fullmatch(f"{name}=") is None:
            raise ValueError(f"the parameter '{name}' cannot be written as a keyword")
        return self.add("member", f"{self.literal(f'{name}=')} {self._value(schema)}")

    def other(self, schema: Any) -> str:
        return self.add(
            "other", f"/[a-zA-Z_][a-zA-Z0-9_]*/ {self.literal('=')} {self._value(schema)}"
        )

    def _value(self, schema: Any) -> str:
        own = embedded(schema if isinstance(schema, Mapping) else {}, self.types.root)
        return f"%json {json.dumps(own)}"


LFM2: Final = CallFormat(
    start="<|tool_call_start|>",
    end="<|tool_call_end|>",
    parser="pythonic",
    begins=r"\s*\[?\s*[\w.:/-]+\(",
    read=lambda text, tools: list(_Scanner(text, tools).calls()),
    json=False,
    written="{name}({arguments})",
    syntax=PythonArguments(),
    together=True,
    section=("[", "]"),
    separator=", ",
)
