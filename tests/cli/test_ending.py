"""The end of a server's process: connections that come while it ends."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import uvicorn

from omlx.cli.serve.ending import Deadline, EngineMonitor, Server
from omlx.engine.thread import EngineThread
from omlx.engine.work import Watchdog


async def app(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("nothing is requested")


def test_a_connection_being_accepted_does_not_hold_the_end() -> None:
    async def serve_and_end() -> None:
        engine = EngineThread()
        monitor = EngineMonitor(engine, Watchdog(engine.heartbeat), deadline)
        server = Server(uvicorn.Config(app, lifespan="off"), monitor, listens.set)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        await listens.wait()
        with socket.create_connection(address):
            server.should_exit = True
            # One turn of the loop then sees both: the new connection, and the time to look at the
            # flag above. uvicorn ends before it knows the connection.
            time.sleep(0.2)
            await asyncio.wait_for(serving, 10)

    listens = asyncio.Event()
    listening = socket.create_server(("127.0.0.1", 0))
    address = listening.getsockname()
    with Deadline() as deadline:
        asyncio.run(serve_and_end())
