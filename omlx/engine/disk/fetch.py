"""A prefix on its way from disk into memory, between the thread of the disk and the engine's."""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

from omlx.engine.disk.chain import TokenChain
from omlx.engine.disk.cover import Part
from omlx.engine.disk.record import Record

READ_AHEAD: Final = 128 << 20
"""Bytes read that the engine has not taken yet."""


class Fetch:
    """The longest stored prefix of `chain` that has more than `least` tokens, record by record.

    `length` is None until all records were read, then that of the prefix that they restore: 0 if
    there is none, or a record in the middle was damaged.
    """

    def __init__(self, chain: TokenChain, least: int) -> None:
        self.chain = chain
        self.least = least
        self.length: int | None = None
        self._records: deque[tuple[Part, Record]] = deque()
        self._nbytes = 0
        self._cancelled = False
        self._changed = threading.Condition()

    # -- on the engine thread ----------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether there is something to take, or the end."""
        return bool(self._records) or self.length is not None

    @property
    def ended(self) -> bool:
        """Whether everything was taken."""
        return self.length is not None and not self._records

    def take(self, nbytes: int) -> list[tuple[Part, Record]]:
        """Return the next records, together not much more than `nbytes`."""
        taken: list[tuple[Part, Record]] = []
        with self._changed:
            while self._records and nbytes > 0:
                part, record = self._records.popleft()
                self._nbytes -= record.nbytes
                nbytes -= record.nbytes
                taken.append((part, record))
            self._changed.notify()
        return taken

    def cancel(self) -> None:
        """Give up: nothing is taken any more."""
        with self._changed:
            self._cancelled = True
            self._records.clear()
            self._changed.notify()

    # -- on the thread of the disk -----------------------------------------------------------------

    @property
    def cancelled(self) -> bool:
        return self._cancelled

    def give(self, part: Part, record: Record) -> None:
        """Hand over a record; waits while the engine is behind."""
        with self._changed:
            self._changed.wait_for(lambda: self._cancelled or self._nbytes < READ_AHEAD)
            if not self._cancelled:
                self._records.append((part, record))
                self._nbytes += record.nbytes

    def finish(self, length: int) -> None:
        with self._changed:
            self.length = length
