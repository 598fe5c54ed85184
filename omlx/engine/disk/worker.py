"""The thread that reads and writes the prefixes of one model, requests first."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from omlx.engine.disk.folder import DiskBudget, Fingerprint, StoreAccess, Work, just_open
from omlx.engine.disk.record import Part, Record, Run, TokenChain, join
from omlx.engine.disk.store import DiskStore
from omlx.engine.piece import Layout, runs
from omlx.errors import Reason
from omlx.records import DiskStats

T = TypeVar("T")

IDLE_CHECK_S: Final = 60.0
"""Seconds without work after which the free space is looked at: another model may need a share of
the budget.
"""

WAITING_BYTES: Final = 64 << 20
"""Bytes that may wait to be written."""


class Query(Generic[T]):
    """Work on a store for a `future`; must be ended, done or not."""

    def __init__(self, work: Callable[[DiskStore], T]) -> None:
        self.future: Future[T | None] = Future()
        self._work = work
        self._result: T | None = None

    def __call__(self, store: DiskStore) -> None:
        self._result = self._work(store)

    def end(self) -> None:
        """Set the result; None if the work was not done."""
        if not self.future.done():
            self.future.set_result(self._result)


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
        self._access = StoreAccess(root, fingerprint, block_tokens, budget)
        self._layout = layout
        self._wake = wake
        self._after = after
        self._urgent: deque[Fetch | Work] = deque()
        self._writes: deque[Record | Query[Any]] = deque()
        self._waiting = 0
        self._serving: Fetch | None = None
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="omlx-prefix-disk", daemon=True)
        self._thread.start()

    @property
    def state(self) -> DiskStats:
        """Store without its hits. `off`: nothing is read or written."""
        return self._access.state

    @property
    def off(self) -> Reason | None:
        """Reason why nothing is read or written, or nothing is written."""
        return self.state.off or self._access.paused

    @property
    def has_room(self) -> bool:
        return self._waiting < WAITING_BYTES

    def wait_for_room(self, seconds: float) -> bool:
        """Return whether more may be written, after waiting for it at most `seconds`."""
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

    def ask(self, work: Callable[[DiskStore], T]) -> Future[T | None]:
        """Do `work` behind all earlier writes. The result is None if the disk cannot be used."""
        query = Query(work)
        with self._changed:
            if self._closing:
                query.end()
            self._writes.append(query)
            self._changed.notify_all()
        return query.future

    def touch(self, chain: TokenChain) -> None:
        """Note that the longest stored prefix of `chain` is in use."""
        self.ask(lambda store: store.touch(store.find(chain, self._layout, len(chain))[1]))

    def read(self, part: Part) -> Future[Record | None]:
        """Read a record behind all earlier writes."""
        return self.ask(lambda store: store.read(part))

    def clear(self) -> None:
        """Delete all, also what waits to be written, as soon as the disk can be used."""
        with self._changed:
            for job in self._writes:
                if isinstance(job, Query):
                    job.end()
            self._writes.clear()
            self._waiting = 0
            self._access.clearing = True
            self._urgent.append(just_open)
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
        self._thread.join(seconds)

    # -- on the thread of the disk -----------------------------------------------------------------

    def _run(self) -> None:
        if self._after is not None:
            self._after.join()
            self._after = None
        self._access.attempt(just_open)
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._closing or self._urgent or self._writes, IDLE_CHECK_S
                )
                job = self._next()
            if job is None and self._closing:
                break
            if job is None:
                self._access.attempt(self._access.check_space)
            elif isinstance(job, Fetch):
                self._serve(job)
            elif isinstance(job, Record):
                self._access.attempt(partial(self._access.put, record=job))
                self._written(job)
            else:
                self._access.attempt(job)
            if isinstance(job, Query):
                job.end()
        self._access.close()

    def _next(self) -> Fetch | Record | Work | None:
        self._serving = None
        if not self._urgent:
            return self._writes.popleft() if self._writes else None
        job = self._urgent.popleft()
        if isinstance(job, Fetch):
            self._serving = job
        return job

    def _serve(self, fetch: Fetch) -> None:
        self._access.attempt(lambda store: self._read(store, fetch))
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
        if self._access.paused is None:
            store.touch(parts)


def _read(store: DiskStore, parts: Sequence[Part]) -> list[tuple[Part, Record]]:
    """Return records with their parts, up to one that is damaged or missing."""
    read: list[tuple[Part, Record]] = []
    for part in parts:
        record = store.read(part)
        if record is None:
            break
        read.append((part, record))
    return read


READ_AHEAD: Final = 128 << 20
"""Bytes read that the engine has not taken yet."""


class Fetch:
    """The longest stored prefix of `chain` that has more than `least` tokens, run by run.

    `length` is None until all runs were read, then that of the prefix that they restore: 0 if
    there is none, if a record in the middle was damaged, or after `cancel`.
    """

    def __init__(self, chain: TokenChain, least: int) -> None:
        self.chain = chain
        self.least = least
        self.length: int | None = None
        self._runs: deque[Run] = deque()
        self._nbytes = 0
        self.cancelled = False
        self._changed = threading.Condition()

    def cancel(self) -> None:
        """Give up: nothing is taken any more. Any thread may call."""
        with self._changed:
            self.cancelled = True
            self.length = 0
            self._runs.clear()
            self._changed.notify()

    # -- on the engine thread ----------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether there is something to take, or the end."""
        return bool(self._runs) or self.length is not None

    @property
    def ended(self) -> bool:
        """Whether everything was taken."""
        return self.length is not None and not self._runs

    def wait(self, seconds: float) -> bool:
        """Return `ready`, after waiting for it at most `seconds`."""
        with self._changed:
            return self._changed.wait_for(lambda: self.ready, seconds)

    def take(self, nbytes: int) -> list[Run]:
        """Return the next runs, together not much more than `nbytes`."""
        taken: list[Run] = []
        with self._changed:
            while self._runs and nbytes > 0:
                run = self._runs.popleft()
                self._nbytes -= run.nbytes
                nbytes -= run.nbytes
                taken.append(run)
            self._changed.notify()
        return taken

    # -- on the thread of the disk -----------------------------------------------------------------

    def give(self, run: Run) -> None:
        """Hand over a run; waits while the engine is behind."""
        with self._changed:
            self._changed.wait_for(lambda: self.cancelled or self._nbytes < READ_AHEAD)
            if not self.cancelled:
                self._runs.append(run)
                self._nbytes += run.nbytes
            self._changed.notify()

    def finish(self, length: int) -> None:
        with self._changed:
            if not self.cancelled:
                self.length = length
            self._changed.notify()
