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
    in_order,
    is_open,
    members,
    repeated,
)

_WORD: Final = re.compile(r"[\w.-]+")


@dataclass(frozen=True, slots=True)
class GemmaArguments:
    """Members of an object; `ender` stands around strings."""

    ender: str

    def rules(
        self, schema: Mapping[str, Any] | None, rule: str, notation: Notation
    ) -> Iterator[str]:
        schema = schema or {}
        values = _Rules(schema, rule, notation, self)
        values.rules.append(f"{rule}: {values.members(schema, rule)}")
        yield from values.rules

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

    def members(self, schema: Mapping[str, Any], rule: str) -> str:
        """Return the term for the members of an object."""
        comma, colon = self.literal(","), self.literal(":")
        if is_open(schema):
            member = f"/[a-zA-Z_][a-zA-Z0-9_]*/ {colon} {self.value({})}"
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
        return f"{self.literal(self._syntax.ender)} text"

    def array(self, schema: Mapping[str, Any], rule: str) -> str:
        items = repeated(self.value(schema.get("items", {})), self.literal(","), schema)
        return f"{self.literal('[')} {items} {self.literal(']')}"

    def object(self, schema: Mapping[str, Any], rule: str) -> str:
        return f"{self.literal('{')} {self.members(schema, rule)} {self.literal('}')}"

    def constant(self, value: Any) -> str:
        return self.literal(self._syntax.value(value))
