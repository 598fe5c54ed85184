"""The figures of a quantity, one per trial: their median, their range, and what a ratio means."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import filterfalse
from typing import Final

from omlx.measure.sample import Sample

NOTABLE: Final = 1.05
"""The smallest ratio that counts as a difference."""

_ONE_IN: Final = 40
"""In one of so many series the median is below its confidence interval, in one above it."""

TRIMMED_FROM: Final = 5
"""Values from which on `Spread` leaves out the least and the greatest one."""


@dataclass(frozen=True, slots=True)
class Series:
    """One figure per trial; NaN where a trial could not be timed, which then counts for nothing."""

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
        """The first and the third; the median twice if there are fewer than two values."""
        if len(self.known) < 2:
            return self.median, self.median
        low, _, high = statistics.quantiles(self.known, n=4, method="inclusive")
        return low, high

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of the median, whatever the values' distribution is: as many
        values are below it as are above. The range if there are fewer than six.
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
    def of(cls, metric: Callable[[Sample], float], samples: Iterable[Sample]) -> Series:
        """Return the figure that `metric` takes of each trial's sample."""
        return cls(tuple(map(metric, samples)))

    def over(self, other: Series) -> Series:
        """Return the ratios within trials, NaN where the other side has none or zero.

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


class Gain(StrEnum):
    """What a ratio to plain decoding means. `UNCLEAR`: notable, but the spread covers 1."""

    FASTER = "faster"
    SLOWER = "slower"
    EVEN = "even"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and range of at least one value.

    Of fewer than five values the range covers all of them; of five or more the two extremes are
    left out, so that one outlier decides nothing.
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

    @property
    def gain(self) -> Gain:
        """What these values mean as ratios to plain decoding."""
        if self.low > 1 and self.median >= NOTABLE:
            return Gain.FASTER
        if self.high < 1 and self.median <= 1 / NOTABLE:
            return Gain.SLOWER
        if 1 / NOTABLE < self.median < NOTABLE:
            return Gain.EVEN
        return Gain.UNCLEAR


def geometric_mean(values: Iterable[float]) -> float:
    """Return the geometric mean of at least one positive value."""
    return math.exp(statistics.fmean(map(math.log, values)))
