"""Transport of HTTP: a client's connection and streams, notes of its requests, time-outs, bodies.

A writer waits until its client has read: without a limit, a client that stays connected and reads
nothing would keep its row and its model loaded. An application can neither end a connection nor see
a request whose head is incomplete; `TimeoutProtocol` can. Time-outs of bodies are the guard's.
Bodies are judged before they are parsed, by what is outside their strings.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from math import isinf
from types import MappingProxyType
from typing import Any, ClassVar, Final, TypeAlias, TypeVar

import h11
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from omlx.errors import BadRequest, OmlxError, TooSlow
from omlx.machine import trim
from omlx.server.http import errors

T = TypeVar("T")


class ClientGone(Exception):
    """Error: the client closed the connection."""


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`.

    Cancels `work` and raises ClientGone if the client disconnects first.

    The request's body must have been read: after it, `receive` waits for the client to disconnect.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        for pending in (task, gone):
            pending.cancel()
        for pending in (task, gone):
            with suppress(asyncio.CancelledError, Exception):
                await pending


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


EVENTS: Final = "text/event-stream"
NDJSON: Final = "application/x-ndjson"


class EventStream(Response):
    """Sends `frames` as they are yielded.

    `close` is called once, at the end, for whatever reason it ended. `more` are further headers.
    """

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        close: Callable[[], None],
        media_type: str = EVENTS,
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **more}
        super().__init__(headers=headers, media_type=media_type)
        del self.headers["content-length"]
        self._frames = frames
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with suppress(ClientGone):
                await while_connected(receive, self._send(send))
        finally:
            self._close()

    async def _send(self, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        async with aclosing(self._frames) as frames:
            async for frame in frames:
                await send({"type": "http.response.body", "body": frame, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


_NOTES: Final = "omlx.notes"


@dataclass(frozen=True, slots=True)
class NamedModel:
    """Note of the model that a request names, known to the server or not."""

    name: str


def note(scope: Scope, outcome: object) -> None:
    """Add what the request became."""
    scope.setdefault(_NOTES, []).append(outcome)


def notes(scope: Scope) -> Sequence[object]:
    """Return what was noted so far, in order."""
    noted: list[object] = scope.setdefault(_NOTES, [])
    return noted


_CLOSE: Final = (b"connection", b"close")

log = logging.getLogger("omlx.server")


class TimeoutProtocol(H11Protocol):
    """Closes a connection whose full write buffer was read at less than `min_bytes_per_s` during
    `read_timeout_s`.

    Closes a connection whose request head is incomplete `head_timeout_s` after the connection was
    opened, or, for later requests, after its first byte. Sends 408 if part of a head has arrived,
    else closes without an answer; the rest of a body that was answered before it was read is no
    part of a head. uvicorn's `timeout_keep_alive` closes idle connections.
    """

    read_timeout_s: ClassVar[float] = 120.0
    min_bytes_per_s: ClassVar[float] = 256.0
    head_timeout_s: ClassVar[float] = 60.0
    _read_timer: asyncio.TimerHandle | None = None
    _head_timer: asyncio.TimerHandle | None = None

    # uvicorn narrows the type of the transport too.
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._update_head_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._update_head_timer()

    def shutdown(self) -> None:
        if not self.transport.is_closing():  # asyncio cannot abort TLS that was closed twice
            super().shutdown()

    def handle_events(self) -> None:
        super().handle_events()
        self._close_if_ambiguous()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update_head_timer()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_read_timer()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_read_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_read_timer()
        self._stop_head_timer()
        super().connection_lost(exc)

    def _close_if_ambiguous(self) -> None:
        """Have uvicorn close the connection behind a request with Content-Length and
        Transfer-Encoding (RFC 9112, section 6.1): a proxy may see another end of its body.
        """
        names = {name for name, _ in self.headers or ()}
        if {b"content-length", b"transfer-encoding"} <= names and _CLOSE not in self.headers:
            self.headers.append(_CLOSE)  # the request's own: its answer has the same header

    def _update_head_timer(self) -> None:
        """Run the timer while a request is expected, unless uvicorn's keep-alive timer runs."""
        answering = self.cycle is not None and not self.cycle.response_complete
        if answering or self.timeout_keep_alive_task is not None or self.transport.is_closing():
            self._stop_head_timer()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_timeout_s, self._refuse_slow_head)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse_slow_head(self) -> None:
        partial_head, _ = self.conn.trailing_data
        if self.conn.their_state is h11.IDLE and partial_head:
            body = json.dumps(errors.openai(TooSlow("guard.slow", limit_s=self.head_timeout_s)))
            headers = [("content-type", "application/json"), ("connection", "close")]
            for event in (
                h11.Response(status_code=408, headers=headers, reason=b"Request Timeout"),
                h11.Data(data=body.encode()),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _start_read_timer(self) -> None:
        buffered = self.transport.get_write_buffer_size()
        self._read_timer = self.loop.call_later(self.read_timeout_s, self._check_read, buffered)

    def _stop_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()

    def _check_read(self, buffered: int) -> None:
        """Abort unless the client has read enough since the timer started: a request keeps its
        model loaded until its answer has been read."""
        read = buffered - self.transport.get_write_buffer_size()
        if read > 0 and read >= self.min_bytes_per_s * self.read_timeout_s:
            self._start_read_timer()
            return
        fields = {"read_bytes": read, "seconds": self.read_timeout_s}
        log.warning("a client reads too slowly: disconnected", extra={"fields": fields})
        self.transport.abort()


Json: TypeAlias = dict[str, Any]
"""An object of JSON."""

LIMITS: Final = {b"{": 25_000, b":": 100_000, b",": 1_200_000}
"""Most objects, fields of objects and values in one body. A prompt of a million token ids fits."""
_CODES: Final = {b"{": "request.objects", b":": "request.fields", b",": "request.values"}
LARGE_BYTES: Final = 256 << 10
"""Bodies of this size are parsed off the event loop."""
_SLICE_BYTES: Final = 256 << 10
_TRIM_S: Final = 0.5
_WHITE_SPACE: Final = b" \t\r\n"
_LARGE_NUMBER: Final = re.compile(
    rb"(?<![-+.\deE])-?(?=\d{309}|[\d.]++[eE]\+?\d{3})(?P<number>[-+.\deE]++)"
)
"""A number that may exceed the range of floats."""
_MODEL: Final = re.compile(rb'"model"\s*:\s*"([^"\\]{1,200})"')


def trim_soon() -> None:
    """Return the memory of a large body to the system once the request has ended."""
    loop = asyncio.get_running_loop()
    loop.call_later(_TRIM_S, loop.run_in_executor, None, trim)


async def read_body(request: Request, parse: Callable[[bytes], T]) -> T:
    """Read the body and parse it, a large one off the event loop. Raises what `parse` does.

    Notes the model that an invalid body names.
    """
    body = await request.body()
    try:
        if len(body) < LARGE_BYTES:
            return parse(body)
        return await asyncio.to_thread(parse, body)
    except OmlxError:
        named = _MODEL.search(body)
        if named is not None:
            note(request.scope, NamedModel(named[1].decode(errors="replace")))
        raise


def outside_strings(body: bytes) -> bytes:
    """Return what is outside the strings of a JSON text, without white space.

    A parser holds Python's lock, so the event loop waits for it. A body of 32 MB has room for a
    million objects, which take seconds to build; counting them takes a tenth of a second, in
    slices.

    Raises BadRequest as soon as a count exceeds its limit. For other text the result is arbitrary.
    """
    counts: Counter[bytes] = Counter()
    kept = []
    in_string, carried = False, b""
    for start in range(0, len(body), _SLICE_BYTES):
        piece = carried + body[start : start + _SLICE_BYTES]
        carried = b""
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:  # an escape that continues in the next one
            piece, carried = piece[:-1], piece[-1:]
        parts = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        outside = b"".join(parts[int(in_string) :: 2]).translate(None, _WHITE_SPACE)
        in_string ^= len(parts) % 2 == 0
        for mark, limit in LIMITS.items():
            counts[mark] += outside.count(mark)
            if counts[mark] > limit:
                raise BadRequest(_CODES[mark], limit=limit)
        kept.append(outside)
    return b"".join(kept)


def check_finite(outside: bytes) -> None:
    """Raise BadRequest for NaN and infinite numbers, which the parser accepts in unknown fields: an
    answer that repeats them would not be JSON.

    `outside`: of `outside_strings`. Only these numbers are spelled with N or I.
    """
    for name in (b"N", b"I"):
        if name in outside:
            raise BadRequest("request.json", detail="NaN, Infinity")
    for match in _LARGE_NUMBER.finditer(outside):
        number = match["number"]
        if number.strip(b"-0123456789") and isinf(float(number)):
            raise BadRequest("request.json", detail=match[0][:40].decode())
