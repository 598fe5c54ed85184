"""One figure per trial, of sides that run in pairs.

Sides take turns, so that none always runs on the warmer machine:

trial 1   A B   B A   A B …      the order alternates from pair to pair and
trial 2   B A   A B   B A …      from trial to trial
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import filterfalse
from typing import Final, TypeVar

Result = TypeVar("Result")

_ONE_IN: Final = 40
"""Reciprocal of each tail's probability — a two-sided 95 % interval."""


def run_pair(
    ours: Callable[[], Result], theirs: Callable[[], Result], *, swap: bool
) -> tuple[Result, Result]:
    """Run both sides, theirs first if `swap`. Returns (ours, theirs)."""
    if swap:
        their_result = theirs()
        return ours(), their_result
    our_result = ours()
    return our_result, theirs()


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
