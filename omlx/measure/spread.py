"""Figures per trial: the order of sides, median, range, and the meaning of a ratio.

Sides take turns, so that none always runs on the warmer machine:

trial 1   A B   B A   A B …      two sides: the order alternates from pair to pair and
trial 2   B A   A B   B A …      from trial to trial
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import filterfalse
from typing import Final, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

NOTABLE: Final = 1.05
"""Ratio — smaller differences do not count."""

NOISY_RATE: Final = 1.5
NOISY_SPEEDUP: Final = 4.0
"""Greatest / least value of the rounds — more, and a repeat would not agree.

Plain decoding takes the same time in each round; a speed-up depends on the text, too.
"""

_ONE_IN: Final = 40
"""Reciprocal of each tail's probability — a two-sided 95 % interval."""

TRIMMED_FROM: Final = 5
"""Values — from this count on, `Spread` leaves out the least and the greatest."""


@dataclass(frozen=True, slots=True)
class Series:
    """One figure per trial; NaN, which is ignored, for a trial that could not be timed."""

    values: tuple[float, ...]

    @property
    def known(self) -> tuple[float, ...]:
        return tuple(filterfalse(math.isnan, self.values))

    @property
    def median(self) -> float:
        return statistics.median(self.known) if self.known else math.nan

    @property
    def least(self) -> float:
        return min(self.known, default=math.nan)

    @property
    def most(self) -> float:
        return max(self.known, default=math.nan)

    @property
    def quartiles(self) -> tuple[float, float]:
        """First and third quartile; the median twice for fewer than two values."""
        if len(self.known) < 2:
            return self.median, self.median
        low, _, high = statistics.quantiles(self.known, n=4, method="inclusive")
        return low, high

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of the median, for any distribution of the values.

        A value is below the median with probability 1/2. The full range for fewer than six values.
        """
        ordered, count = sorted(self.known), len(self.known)
        if not count:
            return math.nan, math.nan
        outside, ways = 0, 1 + count  # to have at most 0, then at most 1 value below the median
        while _ONE_IN * ways <= 2**count:
            outside += 1
            ways += math.comb(count, outside + 1)
        return ordered[outside], ordered[-1 - outside]

    @classmethod
    def of(cls, values: Iterable[float]) -> Series:
        return cls(tuple(values))

    def over(self, other: Series) -> Series:
        """Return ratios within trials; NaN if the other value is missing or zero.

        Only trials that both sides finished are paired.
        """
        pairs = zip(self.values, other.values, strict=False)
        return Series(tuple(a / b if b else math.nan for a, b in pairs))

    def to_json(self) -> dict[str, object]:
        low, high = self.quartiles
        return {
            "min": self.least,
            "q1": low,
            "median": self.median,
            "q3": high,
            "max": self.most,
            "samples": list(self.values),
        }


def rotate(items: Sequence[Item], number: int) -> list[Item]:
    """Return `items` beginning with index `number`, modulo their count."""
    first = number % len(items)
    return [*items[first:], *items[:first]]


def run_pair(
    ours: Callable[[], Result], theirs: Callable[[], Result], *, swap: bool
) -> tuple[Result, Result]:
    """Run both sides, theirs first if `swap`. Returns (ours, theirs)."""
    if swap:
        their_result = theirs()
        return ours(), their_result
    our_result = ours()
    return our_result, theirs()


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
