"""From the engine's thread to the event loop: each event to the stream that waits for it.

What comes after a pause is handed over at once, and so is an end. Steps that follow one another faster than anybody
reads are handed over together: a wake-up and a write for every token of a small model would take the processor from the
model itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from omlx.engine.types import Event, Failed, Finished

PACE_S: Final = 0.033
"""The time between two deliveries, for each stream that is open: they share the event loop. Text that comes thirty
times a second flows."""

SLOWEST_S: Final = 0.066


class Router:
    """The engine's event sink. Delivers on `loop`, by default the one that opens the first stream."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop
        self._handlers: dict[str, Callable[[Event], None]] = {}
        self._mail: deque[Event] = deque()
        self._coming = False
        self._next: asyncio.TimerHandle | None = None

    def __call__(self, events: Sequence[Event], /) -> None:
        """On the engine thread; does not block."""
        self._mail.extend(events)
        if self._coming and not any(isinstance(event, Finished | Failed) for event in events):
            return
        self._coming = True
        assert self._loop is not None, "events belong to an open stream"
        with suppress(RuntimeError):  # the event loop is closed: no stream is left
            self._loop.call_soon_threadsafe(self._deliver)

    def open(self, request_id: str, handler: Callable[[Event], None]) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        self._handlers[request_id] = handler

    def forget(self, request_id: str) -> None:
        self._handlers.pop(request_id, None)

    def _deliver(self) -> None:
        """Hand over all there is, and look again a little later: while there is something, no step announces itself."""
        self._coming = False  # before the mail is read: what comes now does
        if self._next is not None:
            self._next.cancel()
        if not self._mail:
            return
        while self._mail:
            event = self._mail.popleft()
            if (handler := self._handlers.get(event.request_id)) is not None:
                handler(event)
        self._coming = True
        assert self._loop is not None
        self._next = self._loop.call_later(
            min(PACE_S * max(1, len(self._handlers)), SLOWEST_S), self._deliver
        )
