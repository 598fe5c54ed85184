"""Clients that stay connected and do not read, or do not finish their request, on real sockets."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import closing, suppress

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from uvicorn.server import ServerState

from omlx.engine.types import Finished, FinishReason
from omlx.server.http.transport import TimeoutProtocol
from tests.server.dialects import user
from tests.server.running import PATIENCE_S, TARGET, omlx, serving

CHAT = "/v1/chat/completions"
SMALL = 4096


class Hasty(TimeoutProtocol):
    """Small socket buffers: nearly everything that is not read waits in the server's write
    buffer."""

    read_timeout_s = 0.05

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL)
        transport.set_write_buffer_limits(SMALL)


def connected(port: int, request: bytes) -> socket.socket:
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
    connection.settimeout(PATIENCE_S)
    connection.connect(("127.0.0.1", port))
    connection.sendall(request)
    return connection


def test_a_stream_that_is_not_read_is_cancelled_and_releases_its_model() -> None:
    with omlx(protocol=Hasty) as running:
        http = running.http
        ask = {"model": TARGET, "messages": user("hello"), "max_tokens": 1}
        assert http.post(CHAT, json=ask).status_code == 200
        more = {"max_tokens": 3000, "stream": True, "logprobs": True, "top_logprobs": 20}
        body = json.dumps({**ask, **more, "logit_bias": running.endless()}).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        with closing(connected(running.port, head.encode() + body)):
            ((_, end),) = running.engine.wait_until_ended(running.engine.wait_for_submission(1))
            assert isinstance(end, Finished)
            assert end.reason is FinishReason.CANCELLED
            assert http.post(f"/v1/models/{TARGET}/unload").status_code == 200


def test_a_long_body_that_is_read_slowly_comes_to_its_end() -> None:
    """At every check a little more was read."""
    checks = []

    class Looking(Hasty):
        read_timeout_s = 0.0

        def _check_read(self, buffered: int) -> None:
            checks.append(buffered)
            super()._check_read(buffered + 1)

    async def much(request: Request) -> Response:
        return Response(b"x" * (1 << 20))

    with serving(Starlette(routes=[Route("/", much)]), Looking) as url:
        request = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        with closing(connected(httpx.URL(url).port or 0, request)) as connection:
            answer = b"".join(iter(lambda: connection.recv(SMALL), b""))
    assert answer.endswith(b"\r\n\r\n" + b"x" * (1 << 20))
    assert checks


class WriteBuffer(asyncio.Transport):
    """A transport whose client has left `size` bytes unread."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.aborted = False

    def get_write_buffer_size(self) -> int:
        return self.size

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True


@pytest.mark.parametrize(("read", "aborted"), [(120, True), (120 * 255, True), (120 * 256, False)])
def test_a_client_must_read_at_a_minimum_rate(
    caplog: pytest.LogCaptureFixture, read: int, aborted: bool
) -> None:
    async def check() -> WriteBuffer:
        config = uvicorn.Config(Starlette(), log_config=None)
        config.load()
        protocol = TimeoutProtocol(config, ServerState(), {})
        buffer = WriteBuffer(1 << 16)
        protocol.connection_made(buffer)
        protocol.pause_writing()
        buffer.size -= read
        protocol._check_read(1 << 16)
        protocol._stop_read_timer()
        protocol._stop_head_timer()
        return buffer

    assert asyncio.run(check()).aborted is aborted
    assert ("too slowly" in caplog.text) is aborted


class Hurried(TimeoutProtocol):
    """Its time-out is longer than a busy machine holds up a client between two calls."""

    head_timeout_s = 0.5


HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\n"


async def at_once(request: Request) -> Response:
    return Response(b"x")


async def later(request: Request) -> Response:
    await request.body()
    return await asyncio.sleep(1.5 * Hurried.head_timeout_s, Response(b"y"))


@pytest.fixture(scope="module")
def hurried() -> Iterator[int]:
    """The port of a server with a short time-out for heads of requests."""
    routes = [
        Route("/", at_once, methods=["GET", "POST"]),
        Route("/later", later, methods=["POST"]),
    ]
    with serving(Starlette(routes=routes), Hurried) as url:
        yield httpx.URL(url).port or 0


def rest(connection: socket.socket) -> bytes:
    """Everything up to the end of the connection."""
    return b"".join(iter(lambda: connection.recv(SMALL), b""))


@pytest.mark.parametrize("begun", [b"POST / HT", HEAD[:-2]])
def test_a_request_that_stops_coming_in_its_head_is_408(hurried: int, begun: bytes) -> None:
    with closing(connected(hurried, begun)) as connection:
        head, _, body = rest(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    assert json.loads(body)["error"]["code"] == "guard.slow"


def test_a_head_that_comes_byte_by_byte_has_no_longer(hurried: int) -> None:
    with (
        closing(connected(hurried, b"GET / HTTP/1.1\r\nX: ")) as connection,
        suppress(ConnectionError),
    ):
        connection.settimeout(Hurried.head_timeout_s / 5)
        for _ in range(200):
            connection.sendall(b"x")
            with suppress(TimeoutError):
                assert connection.recv(SMALL).startswith(b"HTTP/1.1 408 ")
                return
        pytest.fail("the connection stays open")


def test_a_silent_connection_is_closed(hurried: int) -> None:
    with closing(connected(hurried, b"")) as connection:
        assert rest(connection) == b""


def test_the_rest_of_a_body_that_was_answered_is_not_waited_for(hurried: int) -> None:
    with closing(connected(hurried, HEAD + b"1")) as connection:
        assert connection.recv(SMALL).startswith(b"HTTP/1.1 200 ")
        connection.sendall(b"2")
        assert b"HTTP/1.1" not in rest(connection)


def test_a_client_may_be_silent_before_and_after_its_answer(hurried: int) -> None:
    asks = HEAD.replace(b"/ ", b"/later ")
    with closing(connected(hurried, asks[:9])) as connection:
        for piece in (asks[9:20], asks[20:], b"1234"):
            connection.sendall(piece)
        answer = b""
        while not answer.endswith(b"y"):
            piece = connection.recv(SMALL)
            assert piece
            answer += piece
        with closing(connected(hurried, b"")) as other:
            assert rest(other) == b""
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert rest(connection).endswith(b"x")


def test_a_request_with_two_lengths_is_answered_and_the_connection_closed() -> None:
    async def echo(request: Request) -> Response:
        return Response(await request.body())

    both = (
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n0\r\n\r\n"
    )
    behind = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 6\r\n\r\nsecond"
    for before in (b"", behind.replace(b"second", b"before")):
        with (
            serving(Starlette(routes=[Route("/", echo, methods=["POST"])])) as url,
            closing(connected(httpx.URL(url).port or 0, before + both + behind)) as connection,
        ):
            answer = b"".join(iter(lambda: connection.recv(SMALL), b""))
        assert answer.count(b"HTTP/1.1 200") == (2 if before else 1)
        assert answer.endswith(b"first")
        assert b"connection: close" in answer
