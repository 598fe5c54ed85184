"""Chat streams read by a client that does as little work as possible: it counts at the end."""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

END: Final = b"data: [DONE]\n\n"
TIMEOUT_S: Final = 600
TAIL_BYTES: Final = 1 << 16


@dataclass(slots=True)
class _Stream:
    """`tail` is the end of what was received: it holds the last chunk, which has the counts."""

    socket: socket.socket
    tail: bytes = b""

    def read(self) -> bool:
        """Receive what is there. Returns whether the stream has ended."""
        received = self.socket.recv(TAIL_BYTES)
        self.tail = (self.tail + received)[-TAIL_BYTES:]
        return not received


def run(
    port: int, bodies: Sequence[dict[str, Any]], headers: Sequence[str] = ()
) -> tuple[int, float]:
    """Return the tokens made, and the seconds from the first request to the last byte. The
    requests have these `headers`, or none but the usual ones.

    Raises RuntimeError for an incomplete stream.
    """
    streams = [_Stream(socket.create_connection(("127.0.0.1", port), TIMEOUT_S)) for _ in bodies]
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream.socket, selectors.EVENT_READ, stream)
        started = time.perf_counter()
        more = headers or [""] * len(bodies)
        for stream, body, header in zip(streams, bodies, more, strict=True):
            stream.socket.sendall(post("/v1/chat/completions", body, header))
        while selector.get_map():
            ready = selector.select(TIMEOUT_S)
            if not ready:
                raise RuntimeError("the server does not answer")
            for key, _ in ready:
                if key.data.read():
                    selector.unregister(key.data.socket)
        seconds = time.perf_counter() - started
    for stream in streams:
        stream.socket.close()
    return sum(count_tokens(stream.tail) for stream in streams), seconds


def seconds_to_error(port: int) -> float:
    """Return the seconds from an invalid request to the first byte of its answer."""
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as client:
        started = time.perf_counter()
        client.sendall(post("/v1/chat/completions", {"messages": []}))
        if not client.recv(12).endswith(b"400"):
            raise RuntimeError("an invalid request was not refused")
        return time.perf_counter() - started


def count_tokens(tail: bytes) -> int:
    """Return the number of tokens that the end of a stream reports."""
    chunks = [line for line in tail.split(b"\n") if b'"timings"' in line]
    if END.strip() not in tail or not chunks or not chunks[-1].startswith(b"data: "):
        raise RuntimeError(f"a stream has no end: {tail[-300:]!r}")
    counted: int = json.loads(chunks[-1].removeprefix(b"data: "))["timings"]["predicted_n"]
    return counted


def post(path: str, body: dict[str, Any], header: str = "") -> bytes:
    """Return the bytes of a request, with one more `header` if it is not empty."""
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1",
        "Host: 127.0.0.1",
        "Content-Type: application/json",
        "Connection: close",
        f"Content-Length: {len(content)}",
        *filter(None, [header]),
    )
    return "\r\n".join(head).encode() + b"\r\n\r\n" + content
