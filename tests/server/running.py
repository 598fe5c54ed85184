"""A server on a real socket of the loopback, with a real engine behind it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import uvicorn
from starlette.types import ASGIApp

from omlx.cli.serve import limits
from omlx.engine.thread import EngineThread
from omlx.models.discovery import BUNDLED, Registry
from omlx.models.entry import ModelEntry
from omlx.models.pool import Pool
from omlx.server.app import create_app
from omlx.settings.schema import Settings

TARGET, DRAFT, HYBRID = "omlx-demo/target", "omlx-demo/draft", "omlx-demo/hybrid"
DEMO = Registry(tuple(ModelEntry(name, BUNDLED / name, "bundled") for name in (TARGET, DRAFT, HYBRID)))


@dataclass(frozen=True)
class Running:
    url: str
    engine: EngineThread
    pool: Pool

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


@contextmanager
def serving(app: ASGIApp) -> Iterator[str]:
    """The address at which `app` answers while the block runs."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    config = uvicorn.Config(app, log_config=None, access_log=False, ws="none", timeout_graceful_shutdown=5)
    server = Ready(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="test-server")
    thread.start()
    try:
        assert server.ready.wait(30)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


class Ready(uvicorn.Server):
    """Says when it answers, so that nobody needs to poll."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()


@contextmanager
def omlx(
    settings: Settings | None = None,
    *,
    registry: Registry = DEMO,
    default: str | None = TARGET,
    keep_alive_s: float = 5.0,
) -> Iterator[Running]:
    settings = settings or Settings()
    engine = EngineThread()
    engine.start()
    pool = Pool(
        engine,
        registry,
        limits(settings),
        default=default,
        draft=settings.draft_model,
        no_draft=settings.no_draft,
    )
    try:
        with serving(create_app(engine, pool, settings, keep_alive_s=keep_alive_s)) as url:
            yield Running(url, engine, pool)
    finally:
        engine.stop()
