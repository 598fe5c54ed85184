"""Figures of rounds: the order of sides, median, range, and the meaning of a ratio.

Sides take turns, so that none always runs on the warmer machine.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

Item = TypeVar("Item")

NOTABLE: Final = 1.05
"""Ratio — smaller differences do not count."""

NOISY_RATE: Final = 1.5
NOISY_SPEEDUP: Final = 4.0
"""Greatest / least value of the rounds — more, and a repeat would not agree.

Plain decoding takes the same time in each round; a speed-up depends on the text, too.
"""

TRIMMED_FROM: Final = 5
"""Values — from this count on, `Spread` leaves out the least and the greatest."""


def rotate(items: Sequence[Item], number: int) -> list[Item]:
    """Return `items` beginning with index `number`, modulo their count."""
    first = number % len(items)
    return [*items[first:], *items[:first]]


class Gain(StrEnum):
    """Meaning of a ratio to plain decoding. `UNCLEAR`: notable, but the spread covers 1."""

    FASTER = "faster"
    SLOWER = "slower"
    EVEN = "even"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and range of at least one value.

    From `TRIMMED_FROM` values on, the range omits both extremes: a single outlier decides nothing.
    """

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        ordered = sorted(values)
        if len(ordered) >= TRIMMED_FROM:
            ordered = ordered[1:-1]
        return cls(ordered[0], statistics.median(values), ordered[-1])

    def to_json(self, digits: int) -> dict[str, float]:
        return {
            "low": round(self.low, digits),
            "median": round(self.median, digits),
            "high": round(self.high, digits),
        }

    def noise(self, *, of_speedups: bool) -> float | None:
        """Return high / low of positive values if a repeat would not agree, else None."""
        factor = self.high / self.low
        return factor if factor > (NOISY_SPEEDUP if of_speedups else NOISY_RATE) else None

    @property
    def gain(self) -> Gain:
        """Meaning of the values as ratios to plain decoding."""
        if self.low > 1 and self.median >= NOTABLE:
            return Gain.FASTER
        if self.high < 1 and self.median <= 1 / NOTABLE:
            return Gain.SLOWER
        if 1 / NOTABLE < self.median < NOTABLE:
            return Gain.EVEN
        return Gain.UNCLEAR


def geometric_mean(values: Iterable[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))
