"""Integers of a JSON schema that its compiler would round: it holds numbers as 64-bit floats."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from omlx.text.map_schemas import map_schemas

LARGEST: Final = 2**53
"""Up to here, every integer is a 64-bit float of its own."""
_MAYBE: Final = re.compile(r"\d{16}")


def rounded(part: Mapping[str, Any]) -> list[int]:
    """Return the integers that a schema's own `const` and `enum` would lose."""
    named = [part[key] for key in ("const", "enum") if key in part]
    return [number for number in _integers(named) if abs(number) > LARGEST]


def check_integers(text: str) -> None:
    """Raise ValueError, naming the number, if a constant of a schema's text would be rounded."""
    if _MAYBE.search(text) is None:
        return

    def check(part: dict[str, Any]) -> dict[str, Any]:
        for number in rounded(part):
            raise ValueError(f"{number} would be rounded")
        return part

    map_schemas(json.loads(text), check)


def _integers(value: Any) -> Iterator[int]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from _integers(part)
    elif isinstance(value, int):
        yield value
