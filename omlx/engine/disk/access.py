"""The store of one fingerprint, where it can be used: opened when need be, closed by an error.

An error is logged once; after `RETRY_S` the store is opened again. Where the table is damaged, that
is at once, in an empty folder. Used by one thread.
"""

from __future__ import annotations

import errno
import logging
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeAlias

from omlx.engine.disk.budget import DAILY, DiskBudget
from omlx.engine.disk.folder import CacheFolder, Fingerprint, Locked
from omlx.engine.disk.record import Record
from omlx.engine.disk.segments import SEGMENT_BYTES
from omlx.engine.disk.store import DiskStore, Failure, begin_again
from omlx.engine.disk.table import is_damaged
from omlx.engine.isolation import isolate
from omlx.errors import Reason

RETRY_S: Final = 10.0
"""Seconds without the disk after an error, or while another process has it."""

FULL_S: Final = 60.0
"""Seconds without writes after the disk was full."""

CHECK_S: Final = 10.0
"""Seconds after which the free space is looked at again."""

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
