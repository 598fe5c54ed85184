"""Throughput and memory by minute over the last day, in memory."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

MINUTE_S: Final = 60
MAX_MINUTES: Final = 24 * 60


@dataclass(slots=True)
class Minute:
    """Generated tokens and most bytes in use, from `at` (seconds since the epoch) on."""

    at: int
    tokens: int = 0
    used_bytes: int = 0


class Minutes:
    """Minutes of the last day in which the server ran. `wall`: the time of day in seconds."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._minutes: deque[Minute] = deque(maxlen=MAX_MINUTES)

    def add(self, tokens: int = 0, used_bytes: int = 0) -> None:
        """Add tokens to the current minute; keep the highest memory."""
        at = int(self._wall()) // MINUTE_S * MINUTE_S
        if not self._minutes or self._minutes[-1].at < at:
            self._minutes.append(Minute(at))
        newest = self._minutes[-1]
        newest.tokens += tokens
        newest.used_bytes = max(newest.used_bytes, used_bytes)

    async def sample_every(self, interval_s: float, used: Callable[[], int]) -> None:
        while True:
            self.add(used_bytes=used())
            await asyncio.sleep(interval_s)

    def since(self, at: float) -> Sequence[Minute]:
        """Return the minutes from `at` on, newest last."""
        return [minute for minute in self._minutes if minute.at >= at]
