"""A server under test: a process that listens on a loopback port, called as clients call it.

Its streams are read by a client that does as little work as possible: it counts at the end.
"""

from __future__ import annotations

import http.client
import json
import os
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

Message = dict[str, str]

START_S: Final = 180
ANSWER_S: Final = 600


@dataclass(frozen=True, slots=True)
class Server:
    """A server that listens on `port` and knows the model as `model`; `pid` is of its process."""

    name: str
    port: int
    model: str
    pid: int

    def tokens(self, messages: Sequence[Message]) -> list[int]:
        """Return the token ids of a prompt, if the server has such an endpoint."""
        body = {"messages": list(messages)}
        ids: list[int] = call(self.port, "POST", "/tokenize", body)["tokens"]
        return ids


@contextmanager
def omlx_server(
    folder: Path, home: Path, *flags: str, speculation: str = "off"
) -> Iterator[Server]:
    """Serve a model with this strategy of speculation; `home` is the folder of its settings."""
    port = free_port()
    command = ["omlx", "serve", str(folder.resolve()), "--speculation", speculation]
    command += ["--home", str(home)]
    with running([*command, "--port", str(port), *flags], port) as pid:
        yield Server("omlx", port, folder.name, pid)


@contextmanager
def running(module: Sequence[str], port: int, *, python: str = sys.executable) -> Iterator[int]:
    """Run a Python module with its arguments until it answers on `port`, and stop it at the end.

    Yields its id.

    Raises RuntimeError if the process ends or does not answer in time.
    """
    with subprocess.Popen(
        [python, "-m", *module],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    ) as process:
        try:
            _wait(process, port)
            yield process.pid
        finally:
            process.terminate()


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(
                f"a server ended with {process.returncode} before it answered: {process.args!r}"
            )
        with suppress(OSError):
            call(port, "GET", "/health")
            return
        time.sleep(0.2)  # between two tries, up to START_S: a process that starts has no event
    raise RuntimeError(f"no server answers on port {port} after {START_S} s")


def call(
    port: int, method: str, path: str, body: object = None, timeout_s: float = ANSWER_S
) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        content = None if body is None else json.dumps(body)
        connection.request(method, path, content, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = response.read()
        if response.status != 200:
            raise RuntimeError(f"{path}: {response.status} {answer[:400]!r}")
        return json.loads(answer)
    finally:
        connection.close()


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process so far; NaN where /proc does not say it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except OSError:
        return float("nan")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


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


def run_streams(
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
