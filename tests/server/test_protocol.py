"""Clients that stay connected and do not read, on real sockets."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import closing

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from omlx.engine.types import Finished, FinishReason
from omlx.server.protocol import ImpatientProtocol
from tests.server.running import PATIENCE_S, TARGET, omlx, serving

CHAT = "/v1/chat/completions"
SMALL = 4096


class Hasty(ImpatientProtocol):
    """Nearly all that is not read waits where the server sees it, and not in the system's buffers."""

    patience_s = 0.05

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


def test_a_stream_that_nobody_reads_is_cancelled_and_lets_go_of_its_model() -> None:
    with omlx(protocol=Hasty) as running, httpx.Client(base_url=running.url, timeout=PATIENCE_S) as http:
        ask = {"model": TARGET, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
        assert http.post(CHAT, json=ask).status_code == 200
        more = {"max_tokens": 900, "stream": True, "logprobs": True, "top_logprobs": 20}
        body = json.dumps({**ask, **more, "logit_bias": running.endless()}).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        with closing(connected(running.port, head.encode() + body)):
            ((_, end),) = running.engine.wait_until_ended(running.engine.wait_for_submission(1))
            assert isinstance(end, Finished)
            assert end.reason is FinishReason.CANCELLED
            assert http.post(f"/v1/models/{TARGET}/unload").status_code == 200


def test_a_long_body_that_is_read_slowly_comes_to_its_end() -> None:
    """At every look a little more was read."""
    alarms = []

    class Looking(Hasty):
        patience_s = 0.0

        def _judge(self, waiting: int) -> None:
            alarms.append(waiting)
            super()._judge(waiting + 1)

    async def much(request: Request) -> Response:
        return Response(b"x" * (1 << 20))

    with serving(Starlette(routes=[Route("/", much)]), Looking) as url:
        request = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        with closing(connected(httpx.URL(url).port or 0, request)) as connection:
            told = b"".join(iter(lambda: connection.recv(SMALL), b""))
    assert told.endswith(b"\r\n\r\n" + b"x" * (1 << 20))
    assert alarms
