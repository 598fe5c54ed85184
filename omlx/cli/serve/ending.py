"""Ending of `omlx serve`: after a signal, or when its engine hangs or dies. Every wait is bounded.

signal          drain for `DRAIN_S`, then open requests fail; the engine stops        status 0
hang, death     open requests fail at once, /health is 503 for `LAST_WORDS_S`         status 3
second signal   no wait                                                status 128 + its number
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Final

import uvicorn
from h11 import ProtocolError

from omlx.catalog import sentence
from omlx.engine.thread import EngineThread
from omlx.engine.work import Watchdog
from omlx.errors import EngineDead, StageLost

DRAIN_S: Final = 60
"""Seconds for open requests after a signal, if the engine does not hang."""

STOP_S: Final = 12.0
"""Seconds after the drain for engine thread and disk to stop — see `service.STOP_S`."""

LAST_WORDS_S: Final = 1.0
"""Seconds during which clients can learn that the engine died or a stage was lost."""

ENGINE_DIED: Final = 3
"""Exit status — launchd and systemd restart the server."""

_DEAD_STOP_S: Final = 7.0
"""Seconds — bound from the engine's death to the end of the process."""

_CANCEL_S: Final = 2
"""Seconds between failing open requests and cancelling the remaining ones."""

_CLOSE_S: Final = 5.0
"""Seconds for the client's part in closing TLS, once all was given to the system or nearly so."""

_LOOK_EVERY_S: Final = 0.1
_FRAMES: Final = 4
"""Calls — logged of a hanging thread, innermost first."""

log = logging.getLogger("omlx.server")


class Deadline:
    """Ends the process after a bounded wait; disarmed when the block ends."""

    def __init__(self) -> None:
        self._timers: list[threading.Timer] = []

    def __enter__(self) -> Deadline:
        return self

    def __exit__(self, *raised: object) -> None:
        for timer in self._timers:
            timer.cancel()

    def set(self, seconds: float, status: int) -> None:
        """End the process with `status` after `seconds`, unless an earlier deadline is set."""

        def end() -> None:
            log.warning(
                "ended although work was still running", extra={"fields": {"seconds": seconds}}
            )
            os._exit(status)

        timer = threading.Timer(seconds, end)
        timer.name, timer.daemon = "omlx-deadline", True
        timer.start()
        self._timers.append(timer)


class EngineMonitor:
    """Abandons a hanging engine thread, and bounds the server's end after the engine's death.

    `over`: clients have been informed, and the server should end.
    """

    def __init__(self, engine: EngineThread, watchdog: Watchdog, deadline: Deadline) -> None:
        self.over = False
        self._engine = engine
        self._deadline = deadline
        self._watchdog = watchdog
        self._drains_until = float("inf")

    def drain(self) -> None:
        """Give open requests `DRAIN_S`, and a hanging engine much less; report the wait."""
        if open_count := self._engine.open_count:
            message = sentence("cli.serve.draining", {"count": open_count})
            sys.stderr.write(f"\nomlx: {message}\n")
        self._watchdog.ending = True
        self._drains_until = time.monotonic() + DRAIN_S
        self._deadline.set(DRAIN_S + _CANCEL_S + STOP_S, 0)

    async def run(self) -> None:
        """Poll the engine until its death, or until abandoned for hanging."""
        while self._engine.failure is None:
            self._look()
            await asyncio.sleep(_LOOK_EVERY_S)
        if isinstance(self._engine.failure, StageLost):
            return  # the leader ends the process itself
        self._deadline.set(_DEAD_STOP_S, ENGINE_DIED)
        await asyncio.sleep(LAST_WORDS_S)
        self.over = True

    def _look(self) -> None:
        failure = self._watchdog.look()
        if failure is not None:
            fields = {"code": failure.code, **failure.params, "frames": _frames("omlx-engine")}
            log.critical(failure.message, extra={"fields": fields})
            self._engine.abandon(failure)
        elif time.monotonic() > self._drains_until:
            self._drains_until = float("inf")
            self._engine.fail_open(EngineDead("engine.stopped"))


class Server(uvicorn.Server):
    """A server that calls `ready` once listening, and ends when its engine has died."""

    def __init__(
        self, config: uvicorn.Config, monitor: EngineMonitor, ready: Callable[[], None]
    ) -> None:
        super().__init__(config)
        config.timeout_graceful_shutdown = DRAIN_S + _CANCEL_S
        self._monitor = monitor
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.started:
            return
        try:
            self._ready()
        except BrokenPipeError:  # the reader of standard output has gone: end as after a signal
            await self.shutdown(sockets)
            raise

    async def on_tick(self, counter: int) -> bool:
        """Return whether to end. Called ten times a second."""
        return await super().on_tick(counter) or self._monitor.over

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._monitor.drain()
        for server in self.servers:
            server.close()
        # From Python 3.12 on uvicorn would also wait for TLS handshakes, a minute for one that is
        # never completed. Connections with requests are known to it, and waited for, without them.
        self.servers = []
        closing = asyncio.create_task(self._close_idle())
        try:
            await super().shutdown(sockets)
        finally:
            closing.cancel()

    async def _close_idle(self) -> None:
        """Close idle connections until cancelled.

        uvicorn closes known connections once, and then waits for all: a connection being accepted
        at that moment would hold the process for the whole drain, and a client that does not answer
        the end of TLS, for half a minute.
        """
        closing: dict[object, float] = {}
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            now = time.monotonic()
            for connection in list(self.server_state.connections):
                transport = connection.transport
                # Of a connection whose answer broke off; of one with TLS that was closed twice.
                with suppress(ProtocolError, AttributeError):
                    if not transport.is_closing():
                        connection.shutdown()
                    elif transport.get_write_buffer_size():
                        closing.pop(connection, None)
                    elif now - closing.setdefault(connection, now) > _CLOSE_S:
                        transport.abort()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain after the first signal, end at once after a second.

        uvicorn's own handler would raise the signal again after the drain, for earlier handlers.
        """
        if self.should_exit:
            end_at_once(sig, frame)
        self.should_exit = True


def handle_signals() -> None:
    """End the process at once on signals before serving starts and after the drain."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end_at_once)


def end_at_once(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)


def _frames(thread: str) -> str:
    """Return a thread's innermost calls: files and lines, no values."""
    idents = [running.ident for running in threading.enumerate() if running.name == thread]
    stacks = [sys._current_frames().get(ident or 0) for ident in idents]
    frames = [traceback.extract_stack(stack)[-_FRAMES:] for stack in stacks if stack is not None]
    return " < ".join(
        f"{frame.filename}:{frame.lineno} {frame.name}" for stack in frames for frame in stack[::-1]
    )
