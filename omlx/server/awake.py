"""Keeps a Mac from sleeping while requests are open: a child `caffeinate`.

    idle ── a request ──► child ── no request for LINGER_S ──► ended and reaped

The child ends by itself with this process, however that ends (`-w`). The display may sleep, and a
lid that is closed still puts the machine to sleep.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from math import inf
from typing import Final

from omlx.models.pool.pool import Pool

INTERVAL_S: Final = 1.0
"""Seconds between checks for requests — macOS sleeps after a minute at the earliest."""

LINGER_S: Final = 10.0
"""Seconds after the last request — the next turn of a conversation reuses the child."""

RETRY_S: Final = 60.0
"""Seconds from a failure to the next attempt."""

_END_S: Final = 2.0
"""Seconds for the child to exit before it is killed."""

log = logging.getLogger("omlx")


class Awake:
    """The assertion that prevents idle sleep. Does nothing where `platform` is not macOS.

    `wanted` returns the setting. `clock` is monotonic, in seconds.
    """

    def __init__(
        self,
        wanted: Callable[[], bool],
        *,
        platform: str = sys.platform,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wanted = wanted
        self._possible = platform == "darwin"
        self._clock = clock
        self._child: subprocess.Popen[bytes] | None = None
        self._until = self._retry_at = -inf
        self._warned = self._closed = False
        self._lock = threading.Lock()  # `close` may be called while a thread updates

    async def run(self, pool: Pool) -> None:
        try:
            while self._possible:
                busy = in_use(pool)
                if busy or self._child is not None:
                    await asyncio.to_thread(self.update, busy=busy)  # starting it takes some ms
                await asyncio.sleep(INTERVAL_S)
        finally:
            self.close()

    def update(self, *, busy: bool) -> None:
        with self._lock:
            now = self._clock()
            if busy:
                self._until = now + LINGER_S
            needed = now < self._until and self._wanted() and self._possible
            if not needed or self._closed:
                self._end()
            elif self._child is None:
                if now >= self._retry_at:
                    self._start()
            elif self._child.poll() is not None:
                self._failed(f"status {self._child.returncode}")

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._end()

    def _start(self) -> None:
        quiet = subprocess.DEVNULL
        command = ["caffeinate", "-i", "-w", str(os.getpid())]
        try:
            # A session of its own: Ctrl-C in a terminal must not end it before the last answer.
            self._child = subprocess.Popen(
                command, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True
            )
        except OSError as error:
            self._failed(error.strerror or type(error).__name__)

    def _failed(self, detail: str) -> None:
        self._child, self._retry_at = None, self._clock() + RETRY_S
        if not self._warned:
            self._warned = True
            fields = {"command": "caffeinate", "detail": detail}
            log.warning(
                "this Mac may go to sleep while requests are open", extra={"fields": fields}
            )

    def _end(self) -> None:
        if (child := self._child) is None:
            return
        self._child = None
        child.terminate()
        try:
            child.wait(_END_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def in_use(pool: Pool) -> bool:
    """Whether a request waits for a model or uses one."""
    used = any(resident.leases for resident in pool.residents)
    return used or pool.load_queue.requests > 0
