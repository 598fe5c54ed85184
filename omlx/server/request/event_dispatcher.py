"""From the engine thread to the event loop: each event to the stream that waits for it.

Events after a pause are delivered at once, and so are finishes. Steps that follow one another
quickly are delivered together: a wake-up and a write for every token of a small model would take
processor time from the model itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from omlx.engine.types import Event, Failed, Finished

DELIVERY_INTERVAL_S: Final = 0.033
"""Between two deliveries, for each open stream: streams share the event loop.

Text at 30 updates a second is fluent.
"""

MAX_DELIVERY_INTERVAL_S: Final = 0.066


class EventDispatcher:
    """The engine's event sink. `loop`: by default the one that opens the first stream."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop
        self._handlers: dict[str, Callable[[Event], None]] = {}
        self._queue: deque[Event] = deque()
        self._scheduled = False  # a delivery will look at the queue
        self._timer: asyncio.TimerHandle | None = None

    def __call__(self, events: Sequence[Event], /) -> None:
        """Queue events. On the engine thread; does not block."""
        self._queue.extend(events)
        if self._scheduled and not any(isinstance(event, Finished | Failed) for event in events):
            return
        self._scheduled = True
        assert self._loop is not None, "a stream is open"
        with suppress(RuntimeError):  # the event loop is closed: no stream is left
            self._loop.call_soon_threadsafe(self._deliver)

    def open(self, request_id: str, handler: Callable[[Event], None]) -> None:
        """Deliver the events of a request to `handler`. On the event loop."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        self._handlers[request_id] = handler

    def forget(self, request_id: str) -> None:
        self._handlers.pop(request_id, None)

    def _deliver(self) -> None:
        """Deliver the whole queue, and schedule the next delivery unless it was empty.

        While a delivery is scheduled, steps do not wake the event loop.
        """
        self._scheduled = (
            False  # before the queue is read: later events schedule a delivery themselves
        )
        if self._timer is not None:
            self._timer.cancel()
        if not self._queue:
            return
        while self._queue:
            event = self._queue.popleft()
            if (handler := self._handlers.get(event.request_id)) is not None:
                handler(event)
        self._scheduled = True
        interval_s = min(DELIVERY_INTERVAL_S * max(1, len(self._handlers)), MAX_DELIVERY_INTERVAL_S)
        assert self._loop is not None
        self._timer = self._loop.call_later(interval_s, self._deliver)
