"""A prefix on its way from disk into memory, between the thread of the disk and the engine's."""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

from omlx.engine.disk.chain import TokenChain
from omlx.engine.disk.run import Run

READ_AHEAD: Final = 128 << 20
"""Bytes read that the engine has not taken yet."""


class Fetch:
    """The longest stored prefix of `chain` that has more than `least` tokens, run by run.

    `length` is None until all runs were read, then that of the prefix that they restore: 0 if
    there is none, a record in the middle was damaged, or it was given up.
    """

    def __init__(self, chain: TokenChain, least: int) -> None:
        self.chain = chain
        self.least = least
        self.length: int | None = None
        self._runs: deque[Run] = deque()
        self._nbytes = 0
        self._cancelled = False
        self._changed = threading.Condition()

    def cancel(self) -> None:
        """Give up: nothing is taken any more. Any thread may call."""
        with self._changed:
            self._cancelled = True
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

    @property
    def cancelled(self) -> bool:
        return self._cancelled

    def give(self, run: Run) -> None:
        """Hand over a run; waits while the engine is behind."""
        with self._changed:
            self._changed.wait_for(lambda: self._cancelled or self._nbytes < READ_AHEAD)
            if not self._cancelled:
                self._runs.append(run)
                self._nbytes += run.nbytes

    def finish(self, length: int) -> None:
        with self._changed:
            if not self._cancelled:
                self.length = length
