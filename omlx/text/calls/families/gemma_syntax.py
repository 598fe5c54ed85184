"""The arguments of Gemma's calls: `at:<|"|>x<|"|>,days:3,tags:[<|"|>a<|"|>]`.

Strings stand between quotes that are one token, without escapes: a string cannot hold that token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from omlx.text.calls.argument_syntax import (
    Notation,
    ValueRules,
    alternatives_of,
    in_alternatives,
    in_order,
    is_open,
    members,
    repeated,
    unheld_of_object,
)
from omlx.text.calls.tag_grammar import Syntax, bounds_of
from omlx.text.calls.values import ArgumentTypes

_WORD: Final = re.compile(r"[\w.-]+")


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
        """Return the text of a key."""
        if _WORD.fullmatch(name):
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


class _Rules(ValueRules):
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
