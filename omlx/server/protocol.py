"""HTTP/1.1 that gives up on clients who do not read, and on those who do not say what they want.

A writer waits until its client has read. Without a bound a client that stays connected and reads nothing would keep its
row and its model for ever. An application cannot end a connection; this can, and all that waits for the client then
hears that it has gone. Nor does an application know of a request before its head is whole; what comes behind that it
bounds itself.
"""

from __future__ import annotations

import asyncio
import json
from typing import ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from omlx.errors import TooSlow
from omlx.server import errors


class TimeoutProtocol(H11Protocol):
    """Ends a connection on which more waits than fits, if none of it was read for `patience_s`.

    Ends one too whose next request is not whole, up to its body, `head_s` after its first byte: with 408, or without a
    word where nothing has come since it was opened, or only the rest of a body that was answered before it was read.
    How long one that has had its answer may be silent, uvicorn knows (`timeout_keep_alive`).
    """

    patience_s: ClassVar[float] = 120.0
    head_s: ClassVar[float] = 60.0
    _alarm: asyncio.TimerHandle | None = None
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's narrows it too
        super().connection_made(transport)
        self._expect()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._expect()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._expect()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._rest()

    def connection_lost(self, exc: Exception | None) -> None:
        self._rest()
        self._forget_deadline()
        super().connection_lost(exc)

    def _expect(self) -> None:
        """Look at the clock while it is the client's turn, unless uvicorn does."""
        answering = self.cycle is not None and not self.cycle.response_complete
        if answering or self.timeout_keep_alive_task is not None or self.transport.is_closing():
            self._forget_deadline()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.head_s, self._give_up)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        begun, _ = self.conn.trailing_data
        if self.conn.their_state is h11.IDLE and begun:
            refused = errors.openai(TooSlow("guard.slow", limit_s=self.head_s))
            headers = [("content-type", "application/json"), ("connection", "close")]
            for event in (
                h11.Response(status_code=408, headers=headers, reason=b"Request Timeout"),
                h11.Data(data=json.dumps(refused).encode()),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

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
