"""What passes cost, measured: seconds by width and context, never a line through the origin.

Cost over width is a sawtooth (kernel tiles) and flattens with context, so the table keeps medians of live samples by
(context bucket, width) and interpolates only between neighbours. A bucket borrows what it has not measured from the
nearest one, scaled by a width that both know. One drift factor, the median of the last passes against the table,
follows heat and load: samples are stored as if it were 1, answers are multiplied by it. Pure Python; `to_json` and
`from_json` keep it between runs.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from statistics import median, median_low
from typing import Any, Final

SAMPLES: Final = 9
FIRST_BUCKET: Final = 256
OUTLIER: Final = 10.0
FIRST_TIME: Final = 2.0
"""What a first pass of a width may take, in passes as expected, and still be believed: it may have compiled kernels or
touched new memory, and a width thought dear because of that would never be tried again."""

RENEWAL: Final = 8
"""A full entry takes one pass in so many: what is slower than that is drift, and holds for passes not seen as well."""

SETTLED: Final = 3
"""Samples from which an entry is trusted enough to speak of drift."""

UNKNOWN_SLOPE: Final = 0.08
"""What a row more is thought to cost, in passes of one row, while nothing is measured: cheap enough to find out."""

WIDEST_WINDOW: Final = 80
"""Wider passes read prompts: they bound the guess for narrower ones, but no window grows from them."""

SHORT_LAG: Final = 2
"""A round begins with one or two tokens that a draft model has not read; more is a catch-up."""

PLAIN: Final = 0
"""The "width" of a plain step with the next one in flight: the interval between reads, not the pass."""


def bucket(context: int) -> int:
    """Powers of four from 256 tokens: 0 up to 256, 1 up to 1,024, 2 up to 4,096 …"""
    return ((max(0, context - 1) // FIRST_BUCKET).bit_length() + 1) // 2


@dataclass(slots=True)
class LatencyTable:
    """Seconds of one model's passes."""

    drift: float = 1.0
    _turn: int = 0
    _refused: int = 0
    _slow_at_first: set[int] = field(default_factory=set)
    _ratios: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    _samples: dict[int, dict[int, deque[float]]] = field(default_factory=dict)
    _medians: dict[int, dict[int, float]] = field(default_factory=dict)
    _curves: dict[int, tuple[list[int], list[float]]] = field(default_factory=dict)

    def learn(self, width: int, context: int, seconds: float) -> bool:
        """Take in a measured pass. False, and nothing learned, if it took no time, or ten times what was expected
        (sleep, swap); three such passes in a row say that the expectation was wrong."""
        if seconds <= 0.0:
            return False
        here, expected = bucket(context), self.seconds(width, context)
        strange = expected is not None and seconds > OUTLIER * expected and self.reaches(width)
        self._refused = self._refused + 1 if strange else 0
        if 0 < self._refused < SETTLED:
            return False
        self._refused = 0
        slow = expected is not None and 0.0 < FIRST_TIME * expected < seconds
        if (
            slow and not self._measured(width) and (width <= WIDEST_WINDOW or self.reaches(width))
        ):  # it comes again
            self._slow_at_first.add(width)
            return True
        samples = self._samples.setdefault(here, {}).setdefault(width, deque(maxlen=SAMPLES))
        if len(samples) >= SETTLED:
            self._ratios.append(seconds / self._medians[here][width])
            self.drift = median(self._ratios)
        self._turn = (self._turn + 1) % RENEWAL
        if len(samples) == SAMPLES and self._turn:
            return True
        samples.append(seconds / self.drift)
        self._medians.setdefault(here, {})[width] = median_low(samples)
        self._curves.clear()
        return True

    def learn_chunk(self, tokens: int, context: int, seconds: float) -> bool:
        """Take in the reading of a prompt, or of what a draft model has missed: kept under powers of two, so that few
        entries serve all lengths."""
        width = 1 << round(math.log2(tokens))
        return self.learn(width, context, seconds * width / tokens)

    def sample_count(self, width: int, context: int) -> int:
        """How many samples the entry rests on."""
        return len(self._samples.get(bucket(context), {}).get(width, ()))

    def _measured(self, width: int) -> bool:
        """Whether a pass as wide was taken in anywhere, or was slow the first time."""
        return width in self._slow_at_first or any(
            width in entries for entries in self._medians.values()
        )

    @property
    def widest(self) -> int:
        """The widest window ever measured."""
        widths = (
            width
            for entries in self._medians.values()
            for width in entries
            if width <= WIDEST_WINDOW
        )
        return max(widths, default=0)

    def reaches(self, width: int) -> bool:
        """Whether a pass as wide, or nearly, was measured."""
        return any(width <= 2 * known for entries in self._medians.values() for known in entries)

    def seconds(self, width: int, context: int) -> float | None:
        """A pass over `width` rows at `context` tokens, or None while nothing at all is measured."""
        if not self._medians:
            return None
        widths, values = self._curve(bucket(context))
        i = bisect_left(widths, width)
        if i < len(widths) and widths[i] == width:
            return values[i] * self.drift
        if i == 0:
            return values[0] * self.drift
        low, value = widths[i - 1], values[i - 1]
        if i < len(widths):
            slope = (values[i] - value) / (widths[i] - low)
        else:
            # Nothing wider is known: a row more is taken to cost what rows cost on average so far.
            slope = max(0.0, value - values[0]) / (low - 1) if low > 1 else value * UNKNOWN_SLOPE
        return (value + slope * (width - low)) * self.drift

    def plain(self, context: int) -> float | None:
        """The interval between plain steps, or the pass of one row; None while neither is measured."""
        measured = self._medians and self._curve(bucket(context))[0][0] <= 1
        return self.seconds(PLAIN, context) if measured else None

    def _curve(self, here: int) -> tuple[list[int], list[float]]:
        """All widths known anywhere, as seen from this bucket."""
        if here not in self._curves:
            points: dict[int, float] = {}
            for place in sorted(self._medians, key=lambda b: (abs(b - here), b)):
                entries = self._medians[place]
                shared = [width for width in entries if width in points]
                for width, value in entries.items():
                    if width in points:
                        continue
                    near = min(shared, key=lambda other: abs(other - width), default=None)
                    points[width] = value if near is None else value * points[near] / entries[near]
            if 1 not in points and PLAIN in points:
                points[1] = points[PLAIN]
            # No reading of a prompt takes longer than its tokens one by one: the machine slept meanwhile.
            limit = 2.0 * points.get(1, math.inf)
            widths = sorted(
                width
                for width in points
                if width <= WIDEST_WINDOW or points[width] <= limit * width
            )
            self._curves[here] = widths, [points[width] for width in widths]
        return self._curves[here]

    def to_json(self) -> list[dict[str, Any]]:
        return [
            {"bucket": place, "width": width, "seconds": [value * self.drift for value in samples]}
            for place, entries in sorted(self._samples.items())
            for width, samples in sorted(entries.items())
        ]

    @classmethod
    def from_json(cls, rows: list[dict[str, Any]]) -> LatencyTable:
        costs = cls()
        for row in rows:
            place, width = int(row["bucket"]), int(row["width"])
            samples = deque((float(value) for value in row["seconds"]), maxlen=SAMPLES)
            costs._samples.setdefault(place, {})[width] = samples
            costs._medians.setdefault(place, {})[width] = median_low(samples)
        return costs


@dataclass(slots=True)
class CostModel:
    """The target's passes and each draft model's, shared by all rows of a model. A lookup costs nothing here."""

    target: LatencyTable = field(default_factory=LatencyTable)
    drafts: dict[str, LatencyTable] = field(default_factory=dict)
    draft_share: float = 0.2
    """A draft pass in target passes while none is measured: the ratio of the weights' bytes."""

    exploration_budget_s: float = 0.0
    """Seconds put by, from answer to answer, to find out whether a draft model is any good."""

    def verify(self, width: int, context: int) -> float:
        return self.target.seconds(width, context) or 0.0

    def draft(self, name: str, width: int, context: int) -> float:
        """A draft model's pass; as far as none is measured, its share of what the target's would cost. 0 where neither
        is, for wide ones though a narrow one be known."""
        costs = self.drafts.get(name)
        share = self.draft_share
        if costs and (one := costs.seconds(1, context)):
            if width == 1 or costs.reaches(width):
                return costs.seconds(width, context) or one
            share = one / (self.verify(1, context) or math.inf)
        return share * self.verify(width, context)

    def learn_draft(self, name: str, k: int, lag: int, context: int, seconds: float) -> bool:
        """Take in a draft model's whole round, timed apart: `lag` tokens read, k proposed. False as in `learn`."""
        costs = self.drafts.setdefault(name, LatencyTable())
        if lag <= SHORT_LAG:
            return costs.learn(1, context, seconds / k)
        first = seconds - (k - 1) * self.draft(name, 1, context)
        return (
            first <= 0.0
            or not costs.sample_count(1, context)
            or costs.learn_chunk(lag, context, first)
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "target": self.target.to_json(),
            "drafts": {name: c.to_json() for name, c in self.drafts.items()},
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> CostModel:
        drafts = {name: LatencyTable.from_json(rows) for name, rows in data["drafts"].items()}
        return cls(LatencyTable.from_json(data["target"]), drafts)
