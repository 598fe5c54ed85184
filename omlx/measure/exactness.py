"""Comparison of answers, token by token."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

Place = TypeVar("Place")

TOLERANCE: Final = {"float32": 1e-3, "float16": 0.1, "bfloat16": 0.5}
"""Largest gap in logits that rounding may decide, by the dtype of activations."""


@dataclass(frozen=True, slots=True)
class Difference(Generic[Place]):
    """The first token that differs, counted from the start of the answer at `place`."""

    place: Place
    token: int


@dataclass(frozen=True, slots=True)
class Exactness(Generic[Place]):
    """`same` of `of` answers equal the reference; `first` is the first difference, if any."""

    same: int
    of: int
    first: Difference[Place] | None


def compare(answers: Iterable[tuple[Place, Sequence[int], Sequence[int]]]) -> Exactness[Place]:
    """Compare answers with their references: (place, answer, reference) each."""
    same, count, first = 0, 0, None
    for place, answer, reference in answers:
        count += 1
        token = first_difference(answer, reference)
        if token is None:
            same += 1
        elif first is None:
            first = Difference(place, token)
    return Exactness(same, count, first)


def first_difference(answer: Sequence[int], reference: Sequence[int]) -> int | None:
    """Return the first place at which two answers differ, or None if they are the same.

    Where one is the beginning of the other, that is the place where the shorter one ends.
    """
    for place, (token, other) in enumerate(zip(answer, reference, strict=False)):
        if token != other:
            return place
    if len(answer) == len(reference):
        return None
    return min(len(answer), len(reference))


def checksum(answers: Iterable[Iterable[int]]) -> str:
    """Return the CRC-32 of all tokens in order; the ends of answers count."""
    value = 0
    for tokens in answers:
        value = zlib.crc32(array("q", [*tokens, -1]).tobytes(), value)
    return f"{value:08x}"
