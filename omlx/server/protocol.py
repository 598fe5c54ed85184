"""HTTP/1.1 that gives up on clients who do not read.

A writer waits until its client has read. Without a bound a client that stays connected and reads nothing would keep its
row and its model for ever. An application cannot end a connection; this can, and all that waits for the client then
hears that it has gone.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol


class ImpatientProtocol(H11Protocol):
    """Ends a connection on which more waits than fits, if none of it was read for `patience_s`."""

    patience_s: ClassVar[float] = 120.0
    _alarm: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._rest()

    def connection_lost(self, exc: Exception | None) -> None:
        self._rest()
        super().connection_lost(exc)

    def _watch(self) -> None:
        waiting = self.transport.get_write_buffer_size()
        self._alarm = self.loop.call_later(self.patience_s, self._judge, waiting)

    def _rest(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()

    def _judge(self, waiting: int) -> None:
        """A long body over a slow line comes to its end as long as some of it is read."""
        if self.transport.get_write_buffer_size() < waiting:
            self._watch()
        else:
            self.transport.abort()
