"""Streams of chat as a client reads them, with as little work of its own as can be: it counts at the end."""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

END: Final = b"data: [DONE]\n\n"
PATIENCE_S: Final = 600
_RECEIVED: Final = 1 << 16


@dataclass(slots=True)
class _Stream:
    """`tail` is the end of what has come: it holds the last chunk, which tells the counts."""

    socket: socket.socket
    tail: bytes = b""
    tokens: int = field(default=0)


def run(port: int, bodies: Sequence[dict[str, Any]]) -> tuple[int, float]:
    """(tokens, seconds from the first question to the last byte). Raises RuntimeError for an answer that is none."""
    streams = [_Stream(socket.create_connection(("127.0.0.1", port), PATIENCE_S)) for _ in bodies]
    with selectors.DefaultSelector() as waiting:
        for stream in streams:
            waiting.register(stream.socket, selectors.EVENT_READ, stream)
        begun = time.perf_counter()
        for stream, body in zip(streams, bodies, strict=True):
            stream.socket.sendall(_post("/v1/chat/completions", body))
        while waiting.get_map():
            for key, _ in waiting.select(PATIENCE_S) or _silent():
                if _ended(key.data):
                    waiting.unregister(key.data.socket)
        seconds = time.perf_counter() - begun
    for stream in streams:
        stream.socket.close()
    return sum(_tokens(stream.tail) for stream in streams), seconds


def first_byte_of_an_error(port: int) -> float:
    """Seconds from a wrong body to the first byte of its answer."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as client:
        begun = time.perf_counter()
        client.sendall(_post("/v1/chat/completions", {"messages": []}))
        if not client.recv(12).endswith(b"400"):
            raise RuntimeError("a wrong request was not refused")
        return time.perf_counter() - begun


def _post(path: str, body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return head.encode() + f"Content-Length: {len(content)}\r\n\r\n".encode() + content


def _ended(stream: _Stream) -> bool:
    piece = stream.socket.recv(_RECEIVED)
    stream.tail = (stream.tail + piece)[-_RECEIVED:]
    return not piece


def _silent() -> list[Any]:
    raise RuntimeError("the server does not answer")


def _tokens(tail: bytes) -> int:
    told = next((line for line in reversed(tail.split(b"\n")) if b'"timings"' in line), b"")
    if END.strip() not in tail or not told.startswith(b"data: "):
        raise RuntimeError(f"a stream has no end: {tail[-300:]!r}")
    counted: int = json.loads(told.removeprefix(b"data: "))["timings"]["predicted_n"]
    return counted
