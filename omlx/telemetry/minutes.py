"""Throughput, memory and heat by minute over the last day, in memory."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Final

from omlx.power import Heat, read_heat

MINUTE_S: Final = 60
MAX_MINUTES: Final = 24 * 60


@dataclass(slots=True)
class Minute:
    """Generated tokens and most bytes in use, from `at` (seconds since the epoch) on.

    `throttled`: heat slowed the machine down at some moment; None: not known.
    """

    at: int
    tokens: int = 0
    used_bytes: int = 0
    throttled: bool | None = None


@dataclass(frozen=True, slots=True)
class Interval:
    """Tokens per second, most bytes in use, share of throttled minutes; None: not known."""

    at: int
    rate: float
    used_bytes: int
    throttled: float | None


class Minutes:
    """Minutes of the last day in which the server ran. `wall`: the time of day in seconds."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._minutes: deque[Minute] = deque(maxlen=MAX_MINUTES)

    def add(self, tokens: int = 0, used_bytes: int = 0, throttled: bool | None = None) -> None:
        """Add tokens to the current minute; keep the highest memory, and throttling."""
        at = int(self._wall()) // MINUTE_S * MINUTE_S
        if not self._minutes or self._minutes[-1].at < at:
            self._minutes.append(Minute(at))
        newest = self._minutes[-1]
        newest.tokens += tokens
        newest.used_bytes = max(newest.used_bytes, used_bytes)
        if throttled is not None:
            newest.throttled = throttled or bool(newest.throttled)

    async def sample_every(self, interval_s: float, used: Callable[[], int]) -> None:
        while True:
            self.add(used_bytes=used())
            await asyncio.sleep(interval_s)

    async def watch_heat(self, read: Callable[[], Heat | None] = read_heat) -> None:
        """Note throttling every minute; return where heat is not known."""
        while (heat := await asyncio.to_thread(read)) is not None:
            self.add(throttled=heat.throttled)
            await asyncio.sleep(MINUTE_S)

    def since(self, at: float) -> Sequence[Minute]:
        """Return the minutes from `at` on, newest last."""
        return [minute for minute in self._minutes if minute.at >= at]

    def intervals(self, width_s: int, count: int, now: float) -> Sequence[Interval]:
        """Return `count` intervals of `width_s` seconds each, the last with the moment `now`."""
        first = (int(now) // width_s - count + 1) * width_s
        parts: list[list[Minute]] = [[] for _ in range(count)]
        for minute in self.since(first):
            place = (minute.at - first) // width_s
            parts[min(place, count - 1)].append(minute)  # a clock may be set back
        return [_interval(first + width_s * at, width_s, part) for at, part in enumerate(parts)]


def _interval(at: int, width_s: int, minutes: Sequence[Minute]) -> Interval:
    known = [minute.throttled for minute in minutes if minute.throttled is not None]
    return Interval(
        at,
        sum(minute.tokens for minute in minutes) / width_s,
        max((minute.used_bytes for minute in minutes), default=0),
        mean(known) if known else None,
    )
