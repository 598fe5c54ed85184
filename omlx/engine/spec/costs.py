"""What passes cost, measured: seconds by width and context, never a line through the origin.

Cost over width is a sawtooth (kernel tiles) and flattens with context, so the table keeps medians of live samples by
(context bucket, width) and interpolates only between neighbours. One drift factor follows heat and load: samples are
stored as if drift were 1, answers are multiplied by it. Pure Python; `to_json` and `from_json` keep it between runs.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

SAMPLES: Final = 9
FIRST_BUCKET: Final = 256
OUTLIER: Final = 10.0
DRIFT_WEIGHT: Final = 0.1
SETTLED: Final = 5
"""Samples from which an entry is trusted enough to speak of drift."""

UNKNOWN_SLOPE: Final = 0.08
"""What a row more is thought to cost, in passes of one row, while nothing is measured: cheap enough to find out."""


def bucket(context: int) -> int:
    """Powers of four from 256 tokens: 0 up to 256, 1 up to 1,024, 2 up to 4,096 …"""
    return 0 if context <= FIRST_BUCKET else math.ceil(math.log(context / FIRST_BUCKET, 4))


@dataclass(slots=True)
class PassCosts:
    """Seconds of one model's passes. Width 0 stands for the interval between plain steps with one in flight."""

    drift: float = 1.0
    _samples: dict[tuple[int, int], deque[float]] = field(default_factory=dict)

    def learn(self, width: int, context: int, seconds: float) -> bool:
        """Take in a measured pass. False, and nothing learned, if it took ten times what was expected (sleep, swap)."""
        key = (bucket(context), width)
        known = self._samples.get(key)
        if known:
            expected = median(known) * self.drift
            if seconds > OUTLIER * expected:
                return False
            if len(known) >= SETTLED:
                self.drift *= (seconds / expected) ** DRIFT_WEIGHT
        self._samples.setdefault(key, deque(maxlen=SAMPLES)).append(seconds / self.drift)
        return True

    def known(self, width: int, context: int) -> int:
        """How many samples the entry rests on."""
        return len(self._samples.get((bucket(context), width), ()))

    def seconds(self, width: int, context: int) -> float | None:
        """A pass over `width` rows at `context` tokens, or None while nothing at all is measured."""
        here = bucket(context)
        if (value := self._at(width, here)) is not None:
            return value * self.drift
        buckets = sorted({b for b, _ in self._samples}, key=lambda b: abs(b - here))
        for other in buckets:
            if (value := self._at(width, other)) is not None:
                ones, there = self._median(here, 0), self._median(other, 0)
                return value * self.drift * (ones / there if ones and there else 1.0)
        return None

    def plain(self, context: int) -> float | None:
        """The interval between plain steps; the pass of one row where that was never measured."""
        return self.seconds(0, context) or self.seconds(1, context)

    def _median(self, place: int, width: int) -> float | None:
        samples = self._samples.get((place, width))
        return median(samples) if samples else None

    def _at(self, width: int, place: int) -> float | None:
        """From this bucket alone: the entry, or between its neighbours, or beyond the widest at its slope."""
        if (exact := self._median(place, width)) is not None:
            return exact
        if width == 0:
            return None
        widths = sorted(w for b, w in self._samples if b == place and w > 0)
        one = self._median(place, 1) or self._median(place, 0)
        if one is None:
            return None
        below = max((w for w in widths if w < width), default=1)
        above = min((w for w in widths if w > width), default=None)
        low = self._median(place, below) or one
        if above is None:
            # Nothing wider is known: a row more is taken to cost what rows cost on average so far.
            slope = (low - one) / (below - 1) if below > 1 else one * UNKNOWN_SLOPE
            return low + max(slope, 0.0) * (width - below)
        high = self._median(place, above) or low
        return low + (high - low) * (width - below) / (above - below)

    def to_json(self) -> list[dict[str, Any]]:
        return [
            {"bucket": b, "width": w, "seconds": list(samples)} for (b, w), samples in sorted(self._samples.items())
        ]

    @classmethod
    def from_json(cls, rows: list[dict[str, Any]]) -> PassCosts:
        return cls(_samples={(r["bucket"], r["width"]): deque(r["seconds"], maxlen=SAMPLES) for r in rows})
