"""The journal as the event loop sees it: a thread for the disk, and no error.

What cannot be written is a warning in the log, and answers continue without a journal; it is tried
again after a while.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from omlx.errors import Reason
from omlx.server.journal.table import Locked, Part, Table, remove, sync

T = TypeVar("T")

WAIT_S: Final = 5.0
"""Longest time that an answer waits for the disk."""
RETRY_S: Final = 30.0
SYNC_S: Final = 1.0
"""Between two times that what was written is made durable, against power cuts; the death of the
process loses nothing that was written.
"""

log = logging.getLogger("omlx.server")


class Journal:
    """`off` says why nothing is written now. `counts` are since the start: clients that joined an
    answer, that resumed one, that got a finished one. Used on the event loop."""

    def __init__(self, folder: Path, max_bytes: int, max_age_s: float) -> None:
        self.off: Reason | None = None
        self.counts = dict.fromkeys(("joined", "resumed", "repeated"), 0)
        self.max_bytes = max_bytes
        self._folder = folder
        self._open = partial(Table, folder, max_bytes, max_age_s)
        self._table: Table | None = None
        self._retry_at = 0.0
        self._thread = ThreadPoolExecutor(1, "omlx-journal")
        self._batch: tuple[list[Part], asyncio.Task[set[str] | None]] | None = None
        self._posted: set[asyncio.Task[object]] = set()
        self._sync: asyncio.TimerHandle | None = None

    async def run(self, work: Callable[[Table], T], wait_s: float = WAIT_S) -> T | None:
        """Return the result of `work` on the table; None if the disk fails, or takes too long."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._retry_at:
            return None
        future = loop.run_in_executor(self._thread, self._on_table, work)
        await asyncio.wait([future], timeout=wait_s)
        try:
            if not future.done():
                future.add_done_callback(lambda late: late.cancelled() or late.exception())
                raise TimeoutError(f"{wait_s} s")
            result = future.result()
        except (OSError, sqlite3.Error) as error:
            self._retry_at = loop.time() + RETRY_S
            self._failed(error)
            return None
        self.off = None
        if self._sync is None:
            self._sync = loop.call_later(SYNC_S, self._start_sync)
        return result

    async def append(self, part: Part) -> bool | None:
        """Return whether `part` was written; None if the disk fails, or takes too long.

        The parts of one turn of the event loop are written together: a delivery of the engine
        brings tokens of every stream, and the way to the thread costs more than a write.
        """
        if self._batch is None:
            new: list[Part] = []
            self._batch = new, asyncio.create_task(self._write(new))
        parts, written = self._batch
        parts.append(part)
        here = await asyncio.shield(written)
        return None if here is None else part.id in here

    def post(self, work: Callable[[Table], object]) -> None:
        """Do `work` soon, after what was posted before; `flushed` waits for it."""
        task = asyncio.create_task(self.run(work))
        self._posted.add(task)
        task.add_done_callback(self._posted.discard)

    async def flushed(self) -> None:
        """Wait for what was posted."""
        if self._posted:
            await asyncio.wait(self._posted)

    @property
    def size(self) -> tuple[int, int]:
        """How many answers are on disk, and their bytes."""
        table = self._table
        return (0, 0) if table is None else (table.count, table.nbytes)

    def close(self) -> None:
        """Wait for what is being written."""
        if self._sync is not None:
            self._sync.cancel()
        self._thread.submit(self._close)
        self._thread.shutdown()

    async def _write(self, parts: Sequence[Part]) -> set[str] | None:
        self._batch = None  # later parts are for the next batch
        return await self.run(partial(Table.append, parts=parts))

    def _on_table(self, work: Callable[[Table], T]) -> T:
        """On the thread of the journal. Closes a table that fails."""
        try:
            if self._table is None:
                self._table = self._open()
            self._table.check()
            result = work(self._table)
        except (OSError, sqlite3.Error) as error:
            self._close()
            is_damaged = not isinstance(error, OSError | sqlite3.OperationalError)
            if is_damaged:
                remove(self._folder)
            raise
        return result

    def _close(self) -> None:
        table, self._table = self._table, None
        if table is not None:
            table.close()

    def _failed(self, error: Exception) -> None:
        reason = Reason("answer.off.failed", {"detail": str(error) or type(error).__name__})
        if isinstance(error, Locked):
            reason = Reason("answer.off.locked", {"folder": str(self._folder)})
        if self.off is None:
            log.warning(reason.message)
        self.off = reason

    def _start_sync(self) -> None:
        self._sync = None
        table = self._table
        if table is not None:
            asyncio.get_running_loop().run_in_executor(None, sync, table.path)


def now() -> float:
    """Seconds since the epoch: ages are counted over processes, and over sleep."""
    return time.time()


def booted_at() -> float:
    """When the machine was started, in seconds since the epoch: what was written before may not
    have been durable.
    """
    # both count sleep, too
    clock = time.CLOCK_BOOTTIME if sys.platform == "linux" else time.CLOCK_MONOTONIC
    return time.time() - time.clock_gettime(clock)
