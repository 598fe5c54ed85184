"""The thread that reads and writes prefixes on disk.

Requests come before writes. An error closes the store and is logged once; after `RETRY_S` it is
opened again.
"""

from __future__ import annotations

import errno
import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from omlx.engine.disk.budget import DAILY, DiskBudget
from omlx.engine.disk.chain import TokenChain
from omlx.engine.disk.cover import Part
from omlx.engine.disk.fetch import Fetch
from omlx.engine.disk.folder import CacheFolder, Fingerprint, Locked
from omlx.engine.disk.record import Record
from omlx.engine.disk.run import join
from omlx.engine.disk.segments import SEGMENT_BYTES
from omlx.engine.disk.store import DiskStore, Failure, begin_again
from omlx.engine.disk.table import is_damaged
from omlx.engine.isolation import isolate
from omlx.engine.piece import Layout, runs
from omlx.errors import Reason

RETRY_S: Final = 10.0
"""Seconds without the disk after an error, or while another process has it."""

FULL_S: Final = 60.0
"""Seconds without writes after the disk was full."""

CHECK_S: Final = 10.0
"""Seconds after which the free space is looked at again."""

IDLE_CHECK_S: Final = 60.0
"""The same, while nothing is written: another model may need a share of the budget."""

WAITING_BYTES: Final = 64 << 20
"""Bytes that may wait to be written."""

_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

Work: TypeAlias = Callable[[DiskStore], object]

log = logging.getLogger("omlx.prefix")


@dataclass(frozen=True, slots=True)
class StoreState:
    """What is on disk. `off`: why nothing is read or written, `paused`: why nothing is written."""

    off: Reason | None = None
    paused: Reason | None = None
    records: int = 0
    nbytes: int = 0
    max_bytes: int = 0
    written_today: int = 0
    damaged: int = 0


class DiskWorker:
    """One model's prefixes on disk. Any thread may call.

    `wake` is called when a fetch has something, or when there is room to write again. `after` is a
    worker of the same folder that was closed: it still writes what it had then, and comes first.
    """

    def __init__(
        self,
        root: Path,
        fingerprint: Fingerprint,
        layout: Layout,
        block_tokens: int,
        budget: DiskBudget,
        wake: Callable[[], None],
        after: DiskWorker | None = None,
    ) -> None:
        self.state = StoreState()
        self._root = root
        self._fingerprint = fingerprint
        self._layout = layout
        self._block_tokens = block_tokens
        self._budget = budget
        self._wake = wake
        self._after = after
        self._urgent: deque[Fetch | Work] = deque()
        self._writes: deque[Record | Work] = deque()
        self._waiting = 0
        self._serving: Fetch | None = None
        self._clearing = False
        self._closing = False
        self._changed = threading.Condition()
        self._folder: CacheFolder | None = None
        self._store: DiskStore | None = None
        self._retry_at = 0.0
        self._paused_until = 0.0
        self._no_space: Reason | None = None
        self._checked_at = 0.0
        self._thread = threading.Thread(target=self._run, name="omlx-prefix-disk", daemon=True)
        self._thread.start()

    @property
    def has_room(self) -> bool:
        """Whether more may be written now."""
        return self._waiting < WAITING_BYTES

    def wait_for_room(self, seconds: float) -> bool:
        """Return whether more may be written within so many seconds."""
        with self._changed:
            return seconds > 0 and self._changed.wait_for(lambda: self.has_room, seconds)

    def fetch(self, chain: TokenChain, least: int) -> Fetch:
        """Begin to read the longest stored prefix of more than `least` tokens."""
        fetch = Fetch(chain, least)
        with self._changed:
            if self._closing:
                fetch.cancel()
            self._urgent.append(fetch)
            self._changed.notify_all()
        return fetch

    def write(self, record: Record) -> None:
        """Write a record, unless it is there."""
        with self._changed:
            self._writes.append(record)
            self._waiting += record.nbytes
            self._changed.notify_all()

    def touch(self, chain: TokenChain) -> None:
        """Note that the longest stored prefix of `chain` is in use."""
        longest = len(chain)
        with self._changed:
            self._writes.append(
                lambda store: store.touch(store.find(chain, self._layout, longest)[1])
            )
            self._changed.notify_all()

    def clear(self) -> None:
        """Delete all, also what waits to be written; if the disk cannot be used now, as soon as it
        can.
        """
        with self._changed:
            self._writes.clear()
            self._waiting = 0
            self._clearing = True
            self._urgent.append(_open)
            self._changed.notify_all()

    def close(self) -> None:
        """End once everything that waits is written. Reading is given up: it may wait for an engine
        thread that has died.
        """
        with self._changed:
            self._closing = True
            for job in (self._serving, *self._urgent):
                if isinstance(job, Fetch):
                    job.cancel()
            self._changed.notify_all()

    def join(self, seconds: float | None = None) -> None:
        """Wait for the end."""
        self._thread.join(seconds)

    # -- on the thread of the disk -----------------------------------------------------------------

    def _run(self) -> None:
        if self._after is not None:
            self._after.join()
            self._after = None
        self._attempt(_open)
        while True:
            with self._changed:
                self._changed.wait_for(self._has_work, IDLE_CHECK_S)
                job = self._next()
            if job is None and self._closing:
                break
            if job is None:
                self._attempt(self._check_space)
            elif isinstance(job, Fetch):
                self._serve(job)
            elif isinstance(job, Record):
                self._attempt(partial(self._put, record=job))
                self._written(job)
            else:
                self._attempt(job)
        if self._clearing:
            self._retry_at = 0.0
            self._attempt(_open)
        self._close()

    def _has_work(self) -> bool:
        return self._closing or bool(self._urgent) or bool(self._writes)

    def _next(self) -> Fetch | Record | Work | None:
        self._serving = None
        if not self._urgent:
            return self._writes.popleft() if self._writes else None
        job = self._urgent.popleft()
        if isinstance(job, Fetch):
            self._serving = job
        return job

    def _serve(self, fetch: Fetch) -> None:
        self._attempt(lambda store: self._read(store, fetch))
        if fetch.length is None:
            fetch.finish(0)
            self._wake()

    def _written(self, record: Record) -> None:
        with self._changed:
            had_room = self.has_room
            self._waiting = max(0, self._waiting - record.nbytes)
            self._changed.notify_all()
        if not had_room and self.has_room:
            self._wake()

    def _attempt(self, work: Work) -> None:
        """Do something with the store, which is opened if need be."""
        if self._retry_at > time.monotonic():
            return
        with isolate() as outcome:
            try:
                self._do(work)
            except Failure as error:
                self._begin_again(error)
        if isinstance(outcome.error, Locked):
            self._turn_off(Reason("prefix.disk.off.locked", {"folder": str(self._root)}))
        elif outcome.error is not None:
            self._turn_off(_failure(outcome.error))

    def _do(self, work: Work) -> None:
        store = self._opened()
        work(store)
        self.state = replace(
            self.state,
            off=None,
            records=store.records,
            nbytes=store.nbytes,
            written_today=store.written_today,
            damaged=store.damaged,
        )

    def _opened(self) -> DiskStore:
        if self._folder is not None and not self._folder.exists:
            self._close()  # it was removed while in use: begin another one
        if self._store is None:
            self._folder = CacheFolder(self._root, self._fingerprint)
            limit, _ = self._budget.of(self._root, self._folder.others_bytes())
            segment = min(SEGMENT_BYTES, max(1, limit // 16))
            self._store = DiskStore(self._folder.path, self._block_tokens, segment)
            self._check_space(self._store)
        if self._clearing:
            self._store.clear()
            self._clearing = False
        return self._store

    def _begin_again(self, error: Exception) -> None:
        """Go on with an empty folder if the table was damaged; raises any other error."""
        if self._folder is None or self._store is None or not is_damaged(error):
            raise error
        self._store.close()
        begin_again(self._folder.path, error)
        self._close()
        self._do(_open)

    def _close(self) -> None:
        if self._store is not None:
            with suppress(*Failure):
                self._store.close()
        if self._folder is not None:
            self._folder.close()
        self._store = self._folder = None

    def _turn_off(self, reason: Reason) -> None:
        self._close()
        self._retry_at = time.monotonic() + RETRY_S
        if self.state.off != reason:
            log.warning(reason.message, extra={"fields": {"model": self._fingerprint.model}})
        self.state = replace(StoreState(), off=reason)

    def _read(self, store: DiskStore, fetch: Fetch) -> None:
        length, parts = store.find(fetch.chain, self._layout, len(fetch.chain) - 1)
        if length <= fetch.least:
            return
        for adjacent in runs(parts, lambda part: part.place.nbytes):
            if fetch.cancelled:
                return
            read = _read(store, adjacent)
            for run in join(read):
                fetch.give(run)
            self._wake()
            if len(read) < len(adjacent):
                length = adjacent[len(read)].start if self._layout.resumes_anywhere else 0
                break
        fetch.finish(length if length > fetch.least else 0)
        self._wake()
        if self.state.paused is None:
            store.touch(parts)

    def _put(self, store: DiskStore, record: Record) -> None:
        if self._paused_until > time.monotonic() or store.has(record.id):
            return
        if time.monotonic() - self._checked_at > CHECK_S:
            self._check_space(store)
        limit, size = self.state.max_bytes, record.nbytes
        self._pause(self._no_space or self._enough(store))
        if self.state.paused is not None or size > limit // 2:
            return
        try:
            if store.nbytes + size > limit:
                store.shrink(limit - size - limit // 16)
            store.put(record)
        except Failure as error:
            if not _is_full(error):
                raise
            self._paused_until = time.monotonic() + FULL_S
            self._pause(_failure(error))
            store.shrink(store.nbytes // 2)

    def _check_space(self, store: DiskStore) -> None:
        """Learn how much may be written, and free what is too much."""
        assert self._folder is not None
        others = self._folder.others_bytes()
        limit, paused = self._budget.of(self._root, others + store.nbytes)
        folders = 0
        if others + store.nbytes > limit:
            others, folders = self._folder.shrink_others(max(0, limit - store.nbytes))
        own = max(limit - others, limit // (folders + 1))
        self._no_space = paused
        if store.nbytes > own:
            store.shrink(own)
        self._checked_at = time.monotonic()
        self.state = replace(self.state, max_bytes=own)
        self._pause(paused or self._enough(store))

    def _enough(self, store: DiskStore) -> Reason | None:
        """Say that enough was written today, if so."""
        written = store.written_today
        if written < DAILY * self.state.max_bytes:
            return None
        return Reason("prefix.disk.daily", {"written": written >> 20})

    def _pause(self, reason: Reason | None) -> None:
        """Stop writing, or go on; log the change."""
        before = self.state.paused
        if reason is not None and (before is None or before.code != reason.code):
            log.warning(reason.message, extra={"fields": {"model": self._fingerprint.model}})
        self.state = replace(self.state, paused=reason)


def _open(store: DiskStore) -> None:
    """Work that needs no more than an open store."""


def _read(store: DiskStore, parts: Sequence[Part]) -> list[tuple[Part, Record]]:
    """Return records with their parts, up to one that is damaged or missing."""
    read: list[tuple[Part, Record]] = []
    for part in parts:
        record = store.read(part)
        if record is None:
            break
        read.append((part, record))
    return read


def _is_full(error: Exception) -> bool:
    if isinstance(error, sqlite3.OperationalError):
        return error.sqlite_errorcode == sqlite3.SQLITE_FULL
    return isinstance(error, OSError) and error.errno in _FULL


def _failure(error: Exception) -> Reason:
    return Reason("prefix.disk.off.failed", {"detail": str(error)})
