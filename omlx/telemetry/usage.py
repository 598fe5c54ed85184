"""Usage of requests: by day, model and API key, kept over restarts; by minute, by step.

Requests are added in memory; a thread writes the sums every few seconds. Several servers of one
home add to one table. Sums that cannot be written stay in memory, with a warning in the log.
Throughput, memory and heat by minute over the last day are in memory alone.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from datetime import date, timedelta
from pathlib import Path
from statistics import mean
from threading import Lock
from typing import Final, TypeAlias

from omlx import storage
from omlx.power import Heat, read_heat
from omlx.records import RequestStats
from omlx.storage import Failure

KEPT_DAYS: Final = 400
MAX_ROWS: Final = 50_000
"""Rows — about 5 MB."""

MIN_COMPUTED: Final = 64
"""Prompt tokens — fewer computed tokens give no reliable time per token."""

log = logging.getLogger("omlx.telemetry")


@dataclass(frozen=True, slots=True)
class Usage:
    """Sums over requests. Counts in tokens, times in seconds.

    measured_n, measured_s: prompt tokens and their prefill time, from requests that were mostly
    computed. draft_saved_s: decode time saved by drafts, where the speed-up was measured.
    """

    requests: int = 0
    failed: int = 0
    prompt: int = 0
    cached: int = 0
    predicted: int = 0
    accepted: int = 0
    measured_n: int = 0
    measured_s: float = 0.0
    draft_saved_s: float = 0.0

    @classmethod
    def of(cls, stats: RequestStats) -> Usage:
        """Return the usage of a generated request, finished or not."""
        computed, measured_n, measured_s, saved_s = stats.prompt_n - stats.cached_n, 0, 0.0, 0.0
        # mostly restored prompts say little about prefill speed
        if computed >= max(MIN_COMPUTED, stats.cached_n):
            measured_n, measured_s = computed, stats.prompt_ms / 1000
        if stats.proposed and stats.steady_speedup is not None:
            saved_s = stats.predicted_ms / 1000 * (stats.steady_speedup - 1)
        return cls(
            requests=1,
            prompt=stats.prompt_n,
            cached=stats.cached_n,
            predicted=stats.predicted_n,
            accepted=stats.accepted,
            measured_n=measured_n,
            measured_s=measured_s,
            draft_saved_s=saved_s,
        )

    def __add__(self, other: Usage) -> Usage:
        return Usage(*map(sum, zip(astuple(self), astuple(other), strict=True)))


FAILURE: Final = Usage(requests=1, failed=1)

Sums: TypeAlias = Mapping[tuple[str, str, str], Usage]
"""Usage by day (`2026-03-14`), model and name of the API key."""

_NAMES: Final = tuple(field.name for field in fields(Usage))
_ADD: Final = (
    f"insert into usage (day, model, key, {', '.join(_NAMES)})"
    f" values (?, ?, ?, {', '.join('?' * len(_NAMES))}) on conflict do update set "
    + ", ".join(f"{name} = {name} + excluded.{name}" for name in _NAMES)
)


class UsageHistory:
    """Sums by day, in memory and in `home`; without a `home` nothing is stored.

    `wall` returns the time of day in seconds. `flush` and `sums` block on the disk. Thread-safe.
    """

    def __init__(self, home: Path | None = None, wall: Callable[[], float] = time.time) -> None:
        self._home = home
        self._wall = wall
        self._pending: dict[tuple[str, str, str], Usage] = {}
        self._lock = Lock()  # guards `_pending`
        self._flushing = Lock()
        self._logged = ""

    def add(self, model: str, key: str, usage: Usage) -> None:
        self._add({(self._day(), model, key): usage})

    def flush(self) -> None:
        """Write pending sums; after a failure they stay pending, with a warning."""
        if self._home is None:
            return
        with self._flushing:
            with self._lock:
                pending, self._pending = self._pending, {}
            try:
                if pending:
                    storage.use(self._home, lambda db: _write(db, pending, self._day(-KEPT_DAYS)))
                self._logged = ""
            except Failure as error:
                self._add(pending)
                self._warn(error)

    def sums(self, days: int) -> Sums:
        """Return the sums of the last `days` days, today included, sorted by day.

        Flushes first. Sums on disk are left out, with a warning, if the table cannot be read.
        """
        self.flush()
        first, sums = self._day(1 - days), dict[tuple[str, str, str], Usage]()
        if self._home is not None:
            try:
                sums = storage.use(self._home, lambda db: _read(db, first))
            except Failure as error:
                self._warn(error)
        with self._lock:
            pending = dict(self._pending)
        for name, usage in pending.items():
            sums[name] = sums.get(name, Usage()) + usage
        return {name: usage for name, usage in sorted(sums.items()) if name[0] >= first}

    def _add(self, sums: Sums) -> None:
        with self._lock:
            for name, usage in sums.items():
                self._pending[name] = self._pending.get(name, Usage()) + usage

    def _day(self, offset: int = 0) -> str:
        return (date.fromtimestamp(self._wall()) + timedelta(days=offset)).isoformat()

    def _warn(self, error: Exception) -> None:
        if str(error) != self._logged:  # once, until a write succeeds
            details = {"home": str(self._home), "detail": str(error)}
            log.warning("statistics not stored", extra={"fields": details})
        self._logged = str(error)


def _write(db: sqlite3.Connection, sums: Sums, oldest: str) -> None:
    """Add `sums`; delete days before `oldest`, then the oldest days above `MAX_ROWS`."""
    db.executemany(_ADD, [(*name, *astuple(usage)) for name, usage in sums.items()])
    db.execute("delete from usage where day < ?", (oldest,))
    (count,) = db.execute("select count(*) from usage").fetchone()
    if count > MAX_ROWS:
        days = "select day from usage order by day limit ?"
        db.execute(f"delete from usage where day in ({days})", (count - MAX_ROWS,))


def _read(db: sqlite3.Connection, first: str) -> dict[tuple[str, str, str], Usage]:
    query = f"select day, model, key, {', '.join(_NAMES)} from usage where day >= ?"
    return {
        (day, model, key): Usage(*sums) for day, model, key, *sums in db.execute(query, (first,))
    }


STEP_S: Final = 2
MAX_STEPS: Final = 450
"""Steps of `STEP_S` — a quarter of an hour of uninterrupted tokens."""

MINUTE_S: Final = 60
MAX_MINUTES: Final = 24 * 60


@dataclass(slots=True)
class Span:
    """Tokens, `drafted` among them, and most bytes in use, from `at` (since the epoch) on.

    `throttled`: heat slowed the machine down at some moment; None: not known.
    """

    at: int
    tokens: int = 0
    drafted: int = 0
    used_bytes: int = 0
    throttled: bool | None = None


@dataclass(frozen=True, slots=True)
class Interval:
    """Tokens per second, most bytes in use, share of throttled spans; None: not known."""

    at: int
    rate: float
    used_bytes: int
    throttled: float | None


class Timeline:
    """Spans of `width_s` seconds, the newest `kept`; those without an addition are absent.

    `wall` returns the time of day in seconds. After a backward clock change, the newest span grows.
    """

    def __init__(
        self, wall: Callable[[], float] = time.time, width_s: int = STEP_S, kept: int = MAX_STEPS
    ) -> None:
        self._width_s = width_s
        self._wall = wall
        self._spans: deque[Span] = deque(maxlen=kept)

    def add(
        self,
        tokens: int = 0,
        drafted: int = 0,
        *,
        used_bytes: int = 0,
        throttled: bool | None = None,
    ) -> None:
        """Add tokens to the current span; keep the highest memory, and throttling."""
        at = int(self._wall()) // self._width_s * self._width_s
        if not self._spans or self._spans[-1].at < at:
            self._spans.append(Span(at))
        newest = self._spans[-1]
        newest.tokens += tokens
        newest.drafted += drafted
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

    def since(self, at: float) -> Sequence[Span]:
        """Return the spans from `at` on, newest last. The newest may still grow."""
        return [span for span in self._spans if span.at >= at]

    def intervals(self, width_s: int, count: int, now: float) -> Sequence[Interval]:
        """Return `count` intervals of `width_s` seconds each, the last with the moment `now`."""
        first = (int(now) // width_s - count + 1) * width_s
        parts: list[list[Span]] = [[] for _ in range(count)]
        for span in self.since(first):
            place = (span.at - first) // width_s
            parts[min(place, count - 1)].append(span)  # a clock may be set back
        return [_interval(first + width_s * at, width_s, part) for at, part in enumerate(parts)]


def _interval(at: int, width_s: int, spans: Sequence[Span]) -> Interval:
    known = [span.throttled for span in spans if span.throttled is not None]
    return Interval(
        at,
        sum(span.tokens for span in spans) / width_s,
        max((span.used_bytes for span in spans), default=0),
        mean(known) if known else None,
    )
