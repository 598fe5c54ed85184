"""Usage by day, model and API key, which survives restarts: names and numbers.

Requests are added in memory; a thread writes the sums every few seconds. Several servers of one
home folder add to one file. What cannot be written stays in memory, and the log says why.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from threading import Lock
from typing import Final

from omlx.telemetry import usage_file
from omlx.telemetry.usage import Sums, Usage

KEPT_DAYS: Final = 400

log = logging.getLogger("omlx.telemetry")


class UsageHistory:
    """Without a `path` nothing is stored. `wall` is the time of day in seconds.

    `flush` and `sums` block on the file; any thread may call them.
    """

    def __init__(self, path: Path | None = None, wall: Callable[[], float] = time.time) -> None:
        self._path = path
        self._wall = wall
        self._pending: dict[tuple[str, str, str], Usage] = {}
        self._lock = Lock()
        """Guards `_pending`."""
        self._file_lock = Lock()
        self._logged = ""

    def add(self, model: str, key: str, usage: Usage) -> None:
        """Count a request of today, in memory."""
        self._add({(self._day(), model, key): usage})

    async def flush_every(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            await asyncio.to_thread(self.flush)

    def flush(self) -> None:
        """Write what was added; what cannot be written is kept for the next time."""
        if self._path is None:
            return
        with self._file_lock:
            with self._lock:
                pending, self._pending = self._pending, {}
            try:
                if pending:
                    usage_file.add(self._path, pending, self._day(-KEPT_DAYS))
                self._logged = ""
            except (OSError, sqlite3.Error, usage_file.ForeignFile) as error:
                self._add(pending)
                self._warn(error)

    def sums(self, days: int) -> Sums:
        """Return the sums of the last `days` days, today included, in order."""
        self.flush()
        first, sums = self._day(1 - days), dict[tuple[str, str, str], Usage]()
        if self._path is not None:
            try:
                sums = usage_file.read(self._path, first)
            except (OSError, sqlite3.Error, usage_file.ForeignFile) as error:
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
        """Log an error once, until a write succeeds."""
        if str(error) != self._logged:
            details = {"file": str(self._path), "detail": str(error)}
            log.warning("statistics not stored", extra={"fields": details})
        self._logged = str(error)
