"""A server with the dashboard and a home folder of its own, and clients with or without session."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from fastapi.routing import iter_route_contexts

from omlx.admin.credentials import Credentials
from omlx.admin.mount import mount
from omlx.models.catalog.registry import Registry
from omlx.models.pool.load_queue import ignore_progress
from omlx.models.pool.load_weights import Report, WeightReader, load_steps
from omlx.models.pool.pool import build_pool
from omlx.models.pool.speculation import check_value
from omlx.server.app import Application
from omlx.server.beginnings.store import BeginningStore
from omlx.server.services import Services
from omlx.settings.configuration import LiveConfiguration
from omlx.settings.layers import Layer, Source
from omlx.settings.schema import Value
from omlx.settings.store import Store
from tests.server.running import DEMO, OFFLINE, TARGET, Running, omlx

PASSWORD = "correct horse"
API = "/admin/api"


@dataclass(frozen=True)
class Administered:
    running: Running
    home: Path
    routes: list[tuple[str, str]]
    """Method and path of all that the dashboard answers."""

    @contextmanager
    def browser(self, *, logged_in: bool = True) -> Iterator[httpx.Client]:
        """An HTTP client that sends its Origin, as browsers do with changes."""
        with httpx.Client(
            base_url=self.running.url, timeout=60, headers={"Origin": self.running.url}
        ) as client:
            if logged_in:
                token = Credentials(self.home).invite()
                assert client.post(f"{API}/login", json={"token": token}).status_code == 200
            yield client

    def endless(self) -> dict[str, Any]:
        """The body of a request for a chat completion that streams until it is cancelled.

        Loads the model, if none is.
        """
        messages = [{"role": "user", "content": "Go on."}]
        if self.running.pool.last_used is None:
            body = {"model": TARGET, "messages": messages, "max_tokens": 1}
            httpx.post(f"{self.running.url}/v1/chat/completions", json=body, timeout=60)
        return {
            "model": TARGET,
            "messages": messages,
            "stream": True,
            "logit_bias": self.running.endless(),
            "max_tokens": 3000,
        }


@contextmanager
def administered(
    home: Path,
    registry: Registry = DEMO,
    default: str | None = TARGET,
    report: Report = ignore_progress,
    read: WeightReader = load_steps,
    hub: Mapping[str, str] = OFFLINE,
    **flags: Value,
) -> Iterator[Administered]:
    """`report` follows the progress of loads, `read` reads weights, `hub` is the environment of
    downloads."""
    configuration = LiveConfiguration((Layer(Source.CLI, flags),), Store(home, check_value))
    routes: list[tuple[str, str]] = []

    def prepare(app: Application, services: Services) -> None:
        before = len(app.routes)
        mount(app, services, configuration, home)
        added = iter_route_contexts(app.routes[before:])
        routes.extend((method, route.path) for route in added for method in route.methods or ())

    with omlx(
        configuration=configuration,
        registry=registry,
        default=default,
        build=partial(build_pool, report=report, read=read),
        prepare=prepare,
        hub={"HOME": str(home), **hub},
        home=home,
        beginnings=BeginningStore(home),
    ) as running:
        yield Administered(running, home, routes)


def change(client: httpx.Client, path: str, *confirm: str, **changes: Any) -> httpx.Response:
    """PATCH the newest revision."""
    revision = client.get(f"{API}/{path}").headers["etag"]
    body = {"changes": changes, "confirm": list(confirm)}
    return client.patch(f"{API}/{path}", json=body, headers={"If-Match": revision})
