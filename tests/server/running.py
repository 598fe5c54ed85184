"""A server with a real engine on a socket of the loopback interface."""

from __future__ import annotations

import socket
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import httpx
import ollama
import uvicorn
from anthropic import Anthropic
from openai import OpenAI
from starlette.types import ASGIApp

from omlx.engine.loop import EngineLoop
from omlx.engine.thread import EngineThread
from omlx.engine.types import Event, EventSink, Failed, Finished, Request
from omlx.engine.work import Post
from omlx.models.catalog.catalog import Catalog
from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.registry import ModelEntry, Registry
from omlx.models.hub.downloads import Downloads
from omlx.models.pool.cost_store import CostStore
from omlx.models.pool.footprint import used_bytes
from omlx.models.pool.pool import Pool, build_pool
from omlx.receipts.kept import AnswerStore
from omlx.server.app import Application, create_app
from omlx.server.beginnings.store import BeginningStore
from omlx.server.http.transport import TimeoutProtocol
from omlx.server.request.media.images import UrlReader
from omlx.server.services import Services, Stores, build_services
from omlx.settings.configuration import LiveConfiguration
from omlx.settings.schema import Settings
from tests.settings.live import live_configuration

TARGET, DRAFT, HYBRID = "omlx-demo/target", "omlx-demo/draft", "omlx-demo/hybrid"
DEMO = Registry(
    tuple(ModelEntry(name, BUNDLED / name, "bundled") for name in (TARGET, DRAFT, HYBRID))
)
VISION, VISION_DRAFT = "omlx-demo/vision", "omlx-demo/vision-draft"
SEEING = Registry(
    tuple(ModelEntry(name, BUNDLED / name, "bundled") for name in (TARGET, VISION, VISION_DRAFT))
)
"""Needs omlx[vision]."""
PATIENCE_S = 120
OFFLINE = {"HF_HUB_OFFLINE": "1"}
Client = TypeVar("Client", httpx.Client, OpenAI, Anthropic)


class CountingLoop(EngineLoop):
    """Counts the steps that it launches, and their passes."""

    steps = passes = 0

    def step(self) -> list[Event]:
        before = self._in_flight
        events = super().step()
        if self._in_flight is not None and self._in_flight is not before:
            self.steps += 1
            self.passes += len(self._in_flight.plan.forwards)
        return events


class WatchedEngine(EngineThread):
    """Records at which step each request was cancelled and ended, the newest request of a client,
    and whether an idle engine has calibrated."""

    def __init__(self, *, calibrates: bool = False) -> None:
        super().__init__(calibrates=calibrates)
        self.measured = threading.Event()
        self.submitted: list[str] = []
        self.newest: Request | None = None
        self.cancelled: dict[str, int] = {}
        self.ended: dict[str, tuple[int, Finished | Failed]] = {}
        self._change = threading.Condition()
        self._loop: Callable[[], EngineLoop | None] = lambda: None

    @property
    def steps(self) -> int:
        loop = self._loop()
        return loop.steps if isinstance(loop, CountingLoop) else 0

    @property
    def passes(self) -> int:
        loop = self._loop()
        return loop.passes if isinstance(loop, CountingLoop) else 0

    def attach(self, name: str, loop: EngineLoop) -> None:
        if type(loop) is EngineLoop:
            loop.__class__ = CountingLoop
        self._loop = weakref.ref(loop)  # it must be able to go
        super().attach(name, loop)

    def _calibrate(self) -> Post | None:
        post = super()._calibrate()
        if post is None:  # nothing has interrupted it
            self.measured.set()
        return post

    def submit(self, model: str, request: Request, sink: EventSink) -> None:
        def watched(events: Sequence[Event], /) -> None:
            sink(events)  # first: who waits for the end then sees all that follows from it
            with self._change:
                self.ended |= {
                    e.request_id: (self.steps, e)
                    for e in events
                    if isinstance(e, Finished | Failed)
                }
                self._change.notify_all()

        super().submit(model, request, watched)
        with self._change:
            self.submitted.append(request.id)
            if not request.background:
                self.newest = request
            self._change.notify_all()

    def cancel(self, request_id: str) -> None:
        super().cancel(request_id)
        with self._change:  # steps are counted from here: this thread may have been held up before
            self.cancelled.setdefault(request_id, self.steps)
            self._change.notify_all()

    @contextmanager
    def held(self) -> Iterator[threading.Event]:
        """Stand still until the event, which comes at the end of the block at the latest.

        The model that a test asks must be loaded before.
        """
        event = threading.Event()
        self.call(lambda: event.wait(PATIENCE_S))
        try:
            yield event
        finally:
            event.set()

    def forget(self) -> None:
        """Drop all records, so that a long run does not grow."""
        with self._change:
            self.submitted.clear()
            self.cancelled.clear()
            self.ended.clear()

    def wait_for_submission(self, after: int) -> str:
        """The request that came as number `after`, counted from 0."""
        with self._change:
            assert self._change.wait_for(lambda: len(self.submitted) > after, PATIENCE_S)
        return self.submitted[after]

    def wait_until_over(self, prefix: str) -> None:
        """Wait until a request whose id begins with `prefix` has ended by itself."""
        with self._change:
            assert self._change.wait_for(
                lambda: any(each.startswith(prefix) for each in self.ended), PATIENCE_S
            )

    def wait_until_ended(self, prefix: str) -> list[tuple[int, Finished | Failed]]:
        """Wait until every cancelled request whose id begins with `prefix` has ended.

        Returns of each one the steps from its cancellation to its end, and its last event.
        """

        def over() -> bool:
            begun = [each for each in self.cancelled if each.startswith(prefix)]
            return bool(begun) and all(each in self.ended for each in begun)

        with self._change:
            assert self._change.wait_for(over, PATIENCE_S)
        mine = [each for each in self.cancelled if each.startswith(prefix)]
        return [(self.ended[each][0] - self.cancelled[each], self.ended[each][1]) for each in mine]


@dataclass(frozen=True)
class Running:
    url: str
    engine: WatchedEngine
    pool: Pool
    clients: ExitStack = field(default_factory=ExitStack, compare=False)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @cached_property
    def http(self) -> httpx.Client:
        """A client that is closed with the server, as the official ones are."""
        return self._closing(httpx.Client(base_url=self.url, timeout=PATIENCE_S))

    @cached_property
    def openai(self) -> OpenAI:
        url = f"{self.url}/v1"
        return self._closing(OpenAI(base_url=url, api_key="none", max_retries=0))

    @cached_property
    def claude(self) -> Anthropic:
        return self._closing(Anthropic(base_url=self.url, api_key="none", max_retries=0))

    @cached_property
    def ollama(self) -> ollama.Client:
        client: ollama.Client = self.clients.enter_context(ollama.Client(self.url))
        return client

    def _closing(self, client: Client) -> Client:
        self.clients.callback(client.close)
        return client

    def endless(self) -> dict[str, int]:
        """A logit bias under which the loaded model does not stop by itself."""
        assert self.pool.last_used is not None
        return {str(token): -100 for token in self.pool.last_used.stop_ids}


class Ready(uvicorn.Server):
    """A server that signals when it accepts connections."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()


@contextmanager
def serving(app: ASGIApp, protocol: type[TimeoutProtocol] = TimeoutProtocol) -> Iterator[str]:
    """The address at which `app` answers while the block runs."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    config = uvicorn.Config(
        app,
        http=protocol,
        log_config=None,
        access_log=False,
        ws="none",
        timeout_keep_alive=PATIENCE_S,  # a request would meet the end of its connection
        timeout_graceful_shutdown=5,
    )
    server = Ready(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="test-server")
    thread.start()
    try:
        assert server.ready.wait(PATIENCE_S)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


@contextmanager
def omlx(
    settings: Settings | None = None,
    *,
    registry: Registry = DEMO,
    default: str | None = TARGET,
    keep_alive_s: float = 5.0,
    costs: CostStore | None = None,
    build: Callable[..., Pool] = build_pool,
    configuration: LiveConfiguration | None = None,
    used: Callable[[], int] = used_bytes,
    calibrates: bool = False,
    protocol: type[TimeoutProtocol] = TimeoutProtocol,
    prepare: Callable[[Application, Services], None] = lambda app, services: None,
    urls: UrlReader | None = None,
    hub: Mapping[str, str] = OFFLINE,
    home: Path | None = None,
    beginnings: BeginningStore | None = None,
) -> Iterator[Running]:
    """`used` replaces the memory use of the whole process, in bytes.

    `prepare` may add to the application before it starts. `urls` reads images from addresses,
    `hub` is the environment of downloads. Statistics are stored in `home`, if it is given,
    how prompts begin in `beginnings`.
    """
    configuration = configuration or live_configuration(settings or Settings())
    settings = settings or configuration.current.resolve().settings
    engine = WatchedEngine(calibrates=calibrates)
    engine.start()
    pool = build(engine, Catalog(registry, configuration, default), costs=costs, used=used)
    downloads = Downloads(home or settings.home, hub)
    answers = AnswerStore(home or settings.home)
    stores = Stores(downloads, answers, home=home, beginnings=beginnings)
    services = build_services(engine, pool, stores, settings.api_key, urls=urls)
    app = create_app(services, settings, keep_alive_s=keep_alive_s)
    prepare(app, services)
    try:
        with serving(app, protocol) as url, ExitStack() as clients:
            yield Running(url, engine, pool, clients)
    finally:
        engine.stop()
