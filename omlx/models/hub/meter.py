"""The rate of a download over the last seconds, from the bytes that are seen now and then."""

from __future__ import annotations

from collections import deque
from typing import Final

SPAN_S: Final = 20.0
"""Long enough for slow networks: the library writes 10 MB at a time."""


class Meter:
    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def rate(self, now: float, done_bytes: int) -> float | None:
        """Return bytes per second up to `now`, in seconds; None at the beginning."""
        samples = self._samples
        if samples and done_bytes < samples[-1][1]:  # a part was deleted
            samples.clear()
        samples.append((now, done_bytes))
        while now - samples[0][0] > SPAN_S:
            samples.popleft()
        begun, before = samples[0]
        if now <= begun:
            return None
        return (done_bytes - before) / (now - begun)
