"""Numbers of a JSON schema that its compiler would round.

It holds constants as 64-bit floats, and bounds of integers as 64-bit integers read from floats.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from omlx.text.map_schemas import map_schemas

LARGEST: Final = 2**53
"""Up to here, every integer is a 64-bit float of its own."""
_LARGEST_BOUND: Final = 2**63 - 1
_BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_MAYBE: Final = re.compile(r"\d{16}")


def rounded(part: Mapping[str, Any]) -> dict[str, list[int | float]]:
    """Return the numbers that a schema's own constants and bounds would lose, by keyword."""
    lost: dict[str, list[int | float]] = {
        key: [number for number in _integers(part.get(key)) if abs(number) > LARGEST]
        for key in ("const", "enum")
    }
    for key in _BOUNDS:
        bound = part.get(key)
        if isinstance(bound, int | float) and not _bounds(part, key, bound):
            lost[key] = [bound]
    return {key: numbers for key, numbers in lost.items() if numbers}


def _bounds(part: Mapping[str, Any], key: str, bound: float) -> bool:
    """Whether the compiler bounds values just there; it writes no integers beyond 64 bits."""
    if part.get("type") == "integer" and key == "maximum" and bound >= _LARGEST_BOUND:
        return True
    if key.startswith("exclusive") and isinstance(bound, int):
        return abs(bound) < LARGEST  # the next integer is the bound
    return abs(bound) < _LARGEST_BOUND and bound == float(bound)


def check_integers(text: str) -> None:
    """Raise ValueError, naming the number, if a constant or bound of a schema's text would be
    rounded."""
    if _MAYBE.search(text) is None:
        return

    def check(part: dict[str, Any]) -> dict[str, Any]:
        for numbers in rounded(part).values():
            raise ValueError(f"{numbers[0]} would be rounded")
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
