"""The folders of prefixes on disk, and access to that of one model.

OMLX_HOME/cache/lock                     guards the creation and removal of folders
OMLX_HOME/cache/FINGERPRINT/about.json   the model, for people and for staleness
                           /lock         held by the process that uses the folder
                           /…            segments and their table
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import re
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Final, TypeAlias

from omlx.engine.device_errors import isolate
from omlx.engine.disk.record import Record
from omlx.engine.disk.store import SEGMENT_BYTES, DiskStore
from omlx.errors import Reason
from omlx.records import DiskStats
from omlx.storage import Failure, Locked, lock, replace_file

MAX_BYTES: Final = 30 << 30
MIN_FREE: Final = 10 << 30

DAILY: Final = 3
"""Budgets that may be written a day: 90 GiB at most unless configured. An SSD of 1 TB is made for
some 300 GB a day over five years.
"""

RETRY_S: Final = 10.0
"""Seconds without the disk after an error, or while another process has it."""

FULL_S: Final = 60.0
"""Seconds without writes after the disk was full."""

CHECK_S: Final = 10.0
"""Seconds after which the free space is looked at again."""

_UNUSED_S: Final = 30 * 86400.0
"""Seconds after which a folder that was not opened is deleted."""

_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_ABOUT: Final = "about.json"
_NAME: Final = re.compile("[0-9a-f]{32}")

Work: TypeAlias = Callable[[DiskStore], object]

log = logging.getLogger("omlx.prefix")


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Facts that cached prefixes of prompts to `model` depend on. Of one model and `role` only the
    newest is kept, of all those of one `format`, which is a fact.
    """

    model: str
    role: str
    facts: Mapping[str, str]

    @property
    def name(self) -> str:
        text = json.dumps([self.model, self.role, dict(sorted(self.facts.items()))])
        return blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class DiskBudget:
    """Bytes that all folders may take: `size`, as set by the user; None: a quarter of the free
    space, up to `MAX_BYTES`. Below `MIN_FREE` nothing is written.
    """

    size: int | None = None

    def of(self, root: Path, taken: int) -> tuple[int, Reason | None]:
        """Return the bytes that all folders in `root` may take, and why nothing may be written, if
        so. They take `taken` now. Raises OSError.
        """
        free = shutil.disk_usage(root).free
        if self.size is not None:
            return min(self.size, free + taken), None
        room = min(MAX_BYTES, (free + taken) // 4)
        if free >= MIN_FREE:
            return room, None
        return room, Reason("prefix.disk.off.space", {"free": free >> 20, "least": MIN_FREE >> 20})


class CacheFolder:
    """The locked folder of one fingerprint, until `close`."""

    def __init__(self, root: Path, fingerprint: Fingerprint) -> None:
        """Create the folder if need be, and delete stale ones. Raises Locked, OSError."""
        self._root = root
        self.path = root / fingerprint.name
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked_root(root):
            self.path.mkdir(mode=0o700, exist_ok=True)
            self._lock = lock(self.path)
            about = {"model": fingerprint.model, "role": fingerprint.role, **fingerprint.facts}
            try:
                replace_file(self.path / _ABOUT, json.dumps(about, indent=1).encode())
            except OSError:
                self.close()
                raise
            self._remove_stale(about)

    def close(self) -> None:
        os.close(self._lock)

    @property
    def exists(self) -> bool:
        """Whether this is still the folder that was locked."""
        try:
            return os.path.samestat(os.stat(self.path / "lock"), os.fstat(self._lock))
        except OSError:
            return False

    def others_bytes(self) -> int:
        return sum(_bytes_of(folder) for folder in self._others())

    def shrink_others(self, nbytes: int) -> tuple[int, int]:
        """Delete folders that no process uses, the one unused for longest first, until the others
        take `nbytes`. Return what they take, and how many they are. Raises OSError.
        """
        with _locked_root(self._root):
            sizes = {folder: _bytes_of(folder) for folder in self._others()}
            for folder in sorted(sizes, key=_opened_at):
                if sum(sizes.values()) <= nbytes:
                    break
                if _remove(folder):
                    del sizes[folder]
            return sum(sizes.values()), len(sizes)

    def _remove_stale(self, about: Mapping[str, str]) -> None:
        for folder in self._others():
            other = _about(folder)
            replaced = all(other.get(name) == about[name] for name in ("model", "role"))
            unreadable = other.get("format") != about.get("format")
            if replaced or unreadable or time.time() - _opened_at(folder) > _UNUSED_S:
                _remove(folder)

    def _others(self) -> list[Path]:
        with suppress(OSError):
            return [path for path in _folders(self._root) if path != self.path]
        return []


def remove_unused(root: Path, model: str) -> None:
    """Delete the folders of a model that no process uses."""
    with suppress(OSError), _locked_root(root):
        for folder in _folders(root):
            if _about(folder).get("model") == model:
                _remove(folder)


def _folders(root: Path) -> Iterator[Path]:
    """Yield the folders of fingerprints; `root` may hold others. Raises OSError."""
    for path in root.iterdir():
        if _NAME.fullmatch(path.name) and path.is_dir():
            yield path


@contextmanager
def _locked_root(root: Path) -> Iterator[None]:
    """Wait for other processes that create or remove folders."""
    file = os.open(root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def _remove(folder: Path) -> bool:
    """Delete a folder unless a process uses it. Return whether it is gone."""
    with suppress(OSError):
        locked = lock(folder)
        shutil.rmtree(folder, ignore_errors=True)
        os.close(locked)
    return not folder.exists()


def _about(folder: Path) -> dict[str, object]:
    with suppress(OSError, ValueError):
        about = json.loads((folder / _ABOUT).read_bytes())
        return about if isinstance(about, dict) else {}
    return {}


def _opened_at(folder: Path) -> float:
    with suppress(OSError):
        return (folder / _ABOUT).stat().st_mtime
    return 0.0


def _bytes_of(folder: Path) -> int:
    total = 0
    with suppress(OSError):
        for path in folder.iterdir():
            total += path.stat().st_size
    return total


@dataclass(eq=False)
class StoreAccess:
    """The store of one fingerprint, opened when need be. After an error, which is logged once, it
    is closed, and opened again after `RETRY_S`.

    Any thread may read `state`, whose `off` is the reason why the store is closed, and `paused`,
    the reason why nothing is written. Any thread may set `clearing`: the next work empties the
    store first.
    """

    _root: Path
    _fingerprint: Fingerprint
    _block_tokens: int
    _budget: DiskBudget
    state: DiskStats = field(default_factory=DiskStats)
    paused: Reason | None = None
    clearing: bool = False
    _folder: CacheFolder | None = None
    _store: DiskStore | None = None
    _retry_at: float = 0.0
    _paused_until: float = 0.0
    _no_space: Reason | None = None
    _checked_at: float = 0.0

    def attempt(self, work: Work) -> None:
        """Do something with the store, which is opened if need be."""
        if self._retry_at > time.monotonic():
            return
        with isolate() as outcome:
            store = self._opened()
            store.run(lambda: self._do(work, store))
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
        self._pause(self._no_space or self._daily_limit(store))
        if self.paused is not None or size > limit // 2:
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
        """Set the limit by the free space, and delete the records above the limit."""
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
        self._pause(paused or self._daily_limit(store))

    def close(self) -> None:
        """Release the folder, emptied if `clearing` is set."""
        if self.clearing:
            self._retry_at = 0.0
            self.attempt(just_open)
        self._release()

    def _do(self, work: Work, store: DiskStore) -> None:
        if not self._checked_at:
            self.check_space(store)
        if self.clearing:
            store.clear()
            self.clearing = False
        work(store)
        self.state = replace(
            self.state,
            off=None,
            pieces=store.records,
            nbytes=store.nbytes,
            written_today=store.written_today,
            damaged=store.damaged,
        )

    def _opened(self) -> DiskStore:
        if self._folder is not None and not self._folder.exists:
            self._release()  # removed while in use: begin another one
        if self._store is None:
            self._folder = CacheFolder(self._root, self._fingerprint)
            limit, _ = self._budget.of(self._root, self._folder.others_bytes())
            segment = min(SEGMENT_BYTES, max(1, limit // 16))
            self._store = DiskStore(self._folder.path, self._block_tokens, segment)
            self._checked_at = 0.0
        return self._store

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
        self.state, self.paused = DiskStats(reason), None

    def _daily_limit(self, store: DiskStore) -> Reason | None:
        """Return the reason why nothing more is written today; None below the day's limit."""
        written = store.written_today
        if written < DAILY * self.state.max_bytes:
            return None
        return Reason("prefix.disk.daily", {"written": written >> 20})

    def _pause(self, reason: Reason | None) -> None:
        """Stop writing, or go on; log the change."""
        before, self.paused = self.paused, reason
        if reason is not None and (before is None or before.code != reason.code):
            log.warning(reason.message, extra={"fields": {"model": self._fingerprint.model}})


def just_open(store: DiskStore) -> None:
    """Work that needs no more than an open store."""


def _is_full(error: Exception) -> bool:
    if isinstance(error, sqlite3.OperationalError):
        return error.sqlite_errorcode == sqlite3.SQLITE_FULL
    return isinstance(error, OSError) and error.errno in _FULL


def _failure(error: Exception) -> Reason:
    return Reason("prefix.disk.off.failed", {"detail": str(error)})
