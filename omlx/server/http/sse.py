"""Streams: frames of server-sent events and of NDJSON, and a response that ends when its client
disconnects."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from types import MappingProxyType
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from omlx.server.http.connection import ClientGone, while_connected

MEDIA_TYPE: Final = "text/event-stream"
NDJSON: Final = "application/x-ndjson"
DONE: Final = b"data: [DONE]\n\n"
KEEP_ALIVE: Final = b": keep-alive\n\n"
_ID: Final = b"id: "

_BREAKS: Final = {mark: f"\\u{ord(mark):04x}" for mark in "\x85\u2028\u2029"}
"""Many clients split a stream at any of Unicode's line ends; JSON escapes only those of ASCII."""

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def data(payload: dict[str, Any]) -> bytes:
    return b"data: " + _one_line(payload) + b"\n\n"


def line(payload: dict[str, Any]) -> bytes:
    """A frame of NDJSON."""
    return _one_line(payload) + b"\n"


def _one_line(payload: dict[str, Any]) -> bytes:
    text = _encode(payload)
    for mark, escaped in _BREAKS.items():
        text = text.replace(mark, escaped)
    return text.encode()


def named(payload: dict[str, Any]) -> bytes:
    """A frame whose event name is the payload's `type`."""
    return f"event: {payload['type']}\n".encode() + data(payload)


def numbered(number: int, frame: bytes) -> bytes:
    """A frame with an id, which a client that connects again sends as `Last-Event-ID`."""
    return b"%b%d\n%b" % (_ID, number, frame)


def number(frame: bytes) -> int | None:
    """Return the id of a frame, if it has one."""
    if not frame.startswith(_ID):
        return None
    return int(frame[len(_ID) : frame.index(b"\n")])


def numbered_idle(frame: bytes) -> bytes:
    """What keeps a stream with ids open: a comment without the blank line that ends an event.

    Once they have seen an id, the clients of OpenAI and Anthropic take each blank line for an event
    and fail, as it has no data.
    """
    return frame.removesuffix(b"\n") if frame.startswith(b":") else frame


class EventStream(Response):
    """Sends `frames` as they are yielded.

    `close` is called once, at the end, for whatever reason it ended. `more` are further headers.
    """

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        close: Callable[[], None],
        media_type: str = MEDIA_TYPE,
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
