"""The end of a server's process: connections that come, or do not close, while it ends."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from asyncio.base_events import Server as Listening
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from omlx.cli.serve import ending
from omlx.cli.serve.ending import Deadline, EngineMonitor, Server
from omlx.engine.thread import EngineThread
from omlx.engine.work import Watchdog
from omlx.server.http.transport import TimeoutProtocol
from tests.cli.test_welcome import certificate

__all__ = ["certificate"]


async def app(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("no request is answered")


def end_beside(connection: Callable[[socket.socket], Awaitable[None]], **settings: Any) -> None:
    """Serve; end once `connection` is done with a new connection; wait for the end."""

    async def serve_and_end() -> None:
        engine = EngineThread()
        monitor = EngineMonitor(engine, Watchdog(engine.heartbeat), deadline)
        config = uvicorn.Config(app, lifespan="off", http=TimeoutProtocol, **settings)
        server = Server(config, monitor, listens.set)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        await listens.wait()
        with socket.create_connection(address) as client:
            await connection(client)
            server.should_exit = True
            # One turn of the loop then sees both: the new connection, and the time to look at the
            # flag above. uvicorn ends before it knows the connection.
            time.sleep(0.2)
            # asyncio ends such connections itself, after half a minute.
            await asyncio.wait_for(serving, 20)

    listens = asyncio.Event()
    listening = socket.create_server(("127.0.0.1", 0))
    address = listening.getsockname()
    with Deadline() as deadline:
        asyncio.run(serve_and_end())


def test_a_connection_being_accepted_does_not_hold_the_end() -> None:
    async def nothing(client: socket.socket) -> None:
        pass

    end_beside(nothing)


def test_a_handshake_that_is_never_completed_does_not_hold_the_end(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wait_closed(self: Any) -> None:  # as from Python 3.12 on
        while self._active_count:
            await asyncio.sleep(0.01)

    async def accepted(client: socket.socket) -> None:
        await asyncio.sleep(0.1)

    monkeypatch.setattr(Listening, "wait_closed", wait_closed)
    cert, key = map(str, certificate)
    end_beside(accepted, ssl_certfile=cert, ssl_keyfile=key)


@pytest.mark.parametrize(
    "sent", [b"", b"GET / HTTP/1.1\r\nHost: omlx\r\n\r\n"], ids=["idle", "failed"]
)
def test_a_client_that_does_not_answer_the_end_of_tls_does_not_hold_it(
    certificate: tuple[Path, Path], sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed request has closed the connection before."""
    wrapped = []

    async def idle(client: socket.socket) -> None:
        context = ssl.create_default_context(cafile=str(certificate[0]))
        context.check_hostname = False
        wrapped.append(await asyncio.to_thread(context.wrap_socket, client))
        wrapped[0].sendall(sent)
        await asyncio.sleep(0.1)

    monkeypatch.setattr(ending, "_CLOSE_S", 0.3)
    cert, key = map(str, certificate)
    try:
        end_beside(idle, ssl_certfile=cert, ssl_keyfile=key)
    finally:
        for connection in wrapped:
            connection.close()
