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

PACE_S: Final = 0.016
"""The least time between two deliveries, for each stream that is open; they share the event loop. No screen shows more
in between."""

SLOWEST_S: Final = 0.06


class Router:
    """The engine's sink."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handlers: dict[str, Callable[[Event], None]] = {}
        self._mail: deque[Event] = deque()
        self._coming = False
        self._due = 0.0

    def __call__(self, events: Sequence[Event], /) -> None:
        """On the engine thread; does not block."""
        self._mail.extend(events)
        ending = any(isinstance(event, Finished | Failed) for event in events)
        if self._coming and not ending:
            return
        self._coming = True
        with suppress(RuntimeError):  # the event loop is closed: nobody is left to hear
            self._loop.call_soon_threadsafe(self._deliver if ending else self._pace)

    def open(self, request_id: str, handler: Callable[[Event], None]) -> None:
        self._handlers[request_id] = handler

    def forget(self, request_id: str) -> None:
        self._handlers.pop(request_id, None)

    def _pace(self) -> None:
        if (wait_s := self._due - self._loop.time()) > 0:
            self._loop.call_later(wait_s, self._deliver)
        else:
            self._deliver()

    def _deliver(self) -> None:
        self._coming = False  # before the mail is read: what comes now announces itself again
        self._due = self._loop.time() + min(PACE_S * len(self._handlers), SLOWEST_S)
        while self._mail:
            event = self._mail.popleft()
            if (handler := self._handlers.get(event.request_id)) is not None:
                handler(event)
