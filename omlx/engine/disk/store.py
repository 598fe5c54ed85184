"""The records of one model in one folder, opened when need be. Used by one thread of one process.

put      append to the newest segment, then enter into the table
evict    whole segments, the least recently used one first
open     segments without an entry and entries without a segment are deleted
error    logged once, the store is closed and opened again after `RETRY_S`; where the table is
         damaged, at once, in an empty folder
"""

from __future__ import annotations

import errno
import logging
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Final, TypeAlias

from omlx.engine.device_errors import isolate
from omlx.engine.disk.files import FILE, SEGMENT_BYTES, Segments, Table, TableFailure, is_damaged
from omlx.engine.disk.folder import CacheFolder, Fingerprint, Locked
from omlx.engine.disk.record import Damaged, Record, RecordId, TokenChain, decode
from omlx.engine.disk.run import Part, longest_cover
from omlx.engine.piece import Layout
from omlx.errors import Reason

log = logging.getLogger("omlx.prefix")

Failure = (OSError, *TableFailure)
"""What a missing or full disk and a damaged table raise."""


class DiskStore:
    """Every method may raise a `Failure`; the store can then be closed and opened again, with
    `begin_again` in between if its table is damaged. Opening begins again by itself.

    `records` counts what the table has; `damaged` what was dropped because of its checksum.
    """

    def __init__(self, folder: Path, block_tokens: int, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._block_tokens = block_tokens
        self.damaged = 0
        try:
            self._open(folder, segment_bytes)
        except Failure as error:
            if not is_damaged(error):
                raise
            begin_again(folder, error)
            self._open(folder, segment_bytes)

    def _open(self, folder: Path, segment_bytes: int) -> None:
        self._table = Table(folder)
        try:
            self._segments = Segments(folder, segment_bytes)
            self._reconcile()
            self.records = self._table.count
        except Failure:
            self._table.close()
            raise

    @property
    def nbytes(self) -> int:
        """Bytes of the segments."""
        return self._segments.nbytes

    @property
    def written_today(self) -> int:
        return self._table.written(_today())

    def close(self) -> None:
        self._segments.close()
        self._table.close()

    def has(self, id: RecordId) -> bool:
        return self._table.has(id)

    def put(self, record: Record) -> int:
        """Write a record. Return how many bytes that took."""
        place = self._segments.append(record.encode())
        self._table.add(record.id, place, time.time(), _today())
        self.records += 1
        return place.nbytes

    def find(self, chain: TokenChain, layout: Layout, longest: int) -> tuple[int, list[Part]]:
        """Return the longest prefix of at most `longest` tokens that can be read, and its parts."""
        records = list(self._table.along(chain, self._block_tokens))
        return longest_cover(records, layout, longest)

    def touch(self, parts: Iterable[Part]) -> None:
        """Note that these parts are in use."""
        self._table.use({part.place.segment for part in parts}, time.time())

    def read(self, part: Part) -> Record | None:
        """Return a record; None, once it has been dropped, if it is damaged or missing."""
        try:
            return decode(self._segments.read(part.place), part.id)
        except (Damaged, FileNotFoundError, ValueError) as error:
            self._drop(part, error)
            return None

    def shrink(self, nbytes: int) -> None:
        """Evict segments until `nbytes` are left."""
        while self.nbytes > nbytes:
            segment = self._table.least_used()
            if segment is None:
                break
            self._remove(segment)
        self.records = self._table.count

    def clear(self) -> None:
        """Delete every record."""
        for segment in list(self._segments.sizes):
            self._remove(segment)
        self.records = 0

    def _remove(self, segment: int) -> None:
        self._segments.remove(segment)  # first: on a full disk the table cannot change otherwise
        self._table.drop_segment(segment)

    def _drop(self, part: Part, error: Exception) -> None:
        self._table.drop(part.id)
        self.records -= 1
        self.damaged += 1
        fields = {"segment": part.place.segment, "at": part.place.offset, "detail": str(error)}
        if self.damaged == 1:
            log.warning("a damaged prefix on disk was dropped", extra={"fields": fields})

    def _reconcile(self) -> None:
        """Delete what the death of a process left: segments that the table does not know, and the
        other way round.
        """
        entered, there = self._table.segments, set(self._segments.sizes)
        for segment in there - entered:
            self._segments.remove(segment)
        for segment in entered - there:
            self._table.drop_segment(segment)


def begin_again(folder: Path, error: Exception) -> None:
    """Delete a damaged table, which is closed; all segments go when a new one is opened. Raises
    OSError.
    """
    log.warning(
        "the index of prefixes on disk is damaged: begun again",
        extra={"fields": {"detail": str(error)}},
    )
    for path in folder.glob(f"{FILE}*"):
        path.unlink()


def _today() -> str:
    return date.today().isoformat()


RETRY_S: Final = 10.0
"""Seconds without the disk after an error, or while another process has it."""

FULL_S: Final = 60.0
"""Seconds without writes after the disk was full."""

CHECK_S: Final = 10.0
"""Seconds after which the free space is looked at again."""

_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

Work: TypeAlias = Callable[[DiskStore], object]


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


class StoreAccess:
    """Any thread may read `state`, and set `clearing`: then the store is emptied before anything
    else is done with it.
    """

    def __init__(
        self, root: Path, fingerprint: Fingerprint, block_tokens: int, budget: DiskBudget
    ) -> None:
        self.state = StoreState()
        self.clearing = False
        self._root = root
        self._fingerprint = fingerprint
        self._block_tokens = block_tokens
        self._budget = budget
        self._folder: CacheFolder | None = None
        self._store: DiskStore | None = None
        self._retry_at = 0.0
        self._paused_until = 0.0
        self._no_space: Reason | None = None
        self._checked_at = 0.0

    def attempt(self, work: Work) -> None:
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

    def put(self, store: DiskStore, record: Record) -> None:
        """Write a record, unless it is there or nothing may be written."""
        if self._paused_until > time.monotonic() or store.has(record.id):
            return
        if time.monotonic() - self._checked_at > CHECK_S:
            self.check_space(store)
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

    def check_space(self, store: DiskStore) -> None:
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

    def close(self) -> None:
        """Give the folder back; empty it before, if that is still to be done."""
        if self.clearing:
            self._retry_at = 0.0
            self.attempt(just_open)
        self._release()

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
            self._release()  # it was removed while in use: begin another one
        if self._store is None:
            self._folder = CacheFolder(self._root, self._fingerprint)
            limit, _ = self._budget.of(self._root, self._folder.others_bytes())
            segment = min(SEGMENT_BYTES, max(1, limit // 16))
            self._store = DiskStore(self._folder.path, self._block_tokens, segment)
            self.check_space(self._store)
        if self.clearing:
            self._store.clear()
            self.clearing = False
        return self._store

    def _begin_again(self, error: Exception) -> None:
        """Go on with an empty folder if the table was damaged; raises any other error."""
        if self._folder is None or self._store is None or not is_damaged(error):
            raise error
        self._store.close()
        begin_again(self._folder.path, error)
        self._release()
        self._do(just_open)

    def _release(self) -> None:
        if self._store is not None:
            with suppress(*Failure):
                self._store.close()
        if self._folder is not None:
            self._folder.close()
        self._store = self._folder = None

    def _turn_off(self, reason: Reason) -> None:
        self._release()
        self._retry_at = time.monotonic() + RETRY_S
        if self.state.off != reason:
            log.warning(reason.message, extra={"fields": {"model": self._fingerprint.model}})
        self.state = replace(StoreState(), off=reason)

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


def just_open(store: DiskStore) -> None:
    """Work that needs no more than an open store."""


def _is_full(error: Exception) -> bool:
    if isinstance(error, sqlite3.OperationalError):
        return error.sqlite_errorcode == sqlite3.SQLITE_FULL
    return isinstance(error, OSError) and error.errno in _FULL


def _failure(error: Exception) -> Reason:
    return Reason("prefix.disk.off.failed", {"detail": str(error)})


MAX_BYTES: Final = 30 << 30
MIN_FREE: Final = 10 << 30

DAILY: Final = 3
"""Budgets that may be written a day: 90 GiB at most unless configured. An SSD of 1 TB is made for
some 300 GB a day over five years.
"""


@dataclass(frozen=True, slots=True)
class DiskBudget:
    """`size` is what the user allows in bytes. None: a quarter of what is free, up to `MAX_BYTES`;
    below `MIN_FREE` nothing is written.
    """

    size: int | None = None

    def of(self, root: Path, taken: int) -> tuple[int, Reason | None]:
        """Return the bytes that all folders in `root` may take, which take `taken` now, and why
        nothing may be written, if so. Raises OSError.
        """
        free = shutil.disk_usage(root).free
        if self.size is not None:
            return min(self.size, free + taken), None
        room = min(MAX_BYTES, (free + taken) // 4)
        if free < MIN_FREE:
            return room, Reason(
                "prefix.disk.off.space", {"free": free >> 20, "least": MIN_FREE >> 20}
            )
        return room, None
