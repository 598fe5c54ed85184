"""Broken model folders: each is a clear error within a minute, and its neighbour is served."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from omlx.catalog import catalog
from omlx.models.catalog.discovery import BUNDLED, Folder, scan_places
from omlx.models.pool.footprint import footprint
from tests.lanes import few
from tests.models.breakage import BROKEN, HARMLESS, NOT_FINITE
from tests.server.running import DRAFT, Running, omlx

CHAT = "/v1/chat/completions"
GOOD = "good"
MOST_S = 60.0
"""On a busy machine; seconds on another."""
MOST_BYTES = 600 << 20
"""Memory that all folders together may cost: of four tokenizers kept, and of the allocator."""


class Neighbour:
    """Asks the good model again and again, from a thread."""

    def __init__(self, url: str) -> None:
        self.statuses: list[int] = []
        self._url = url
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Neighbour:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        with httpx.Client(base_url=self._url, timeout=60) as http:
            while not self._over.wait(0.02):
                self.statuses.append(ask(http, GOOD).status_code)


def ask(http: httpx.Client, model: str) -> httpx.Response:
    messages = [{"role": "user", "content": "Count to nine."}]
    return http.post(CHAT, json={"model": model, "messages": messages, "max_tokens": 4})


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    root = tmp_path_factory.mktemp("models")
    shutil.copytree(BUNDLED / DRAFT, root / GOOD)
    for name, damage in (BROKEN | HARMLESS | NOT_FINITE).items():
        damage(shutil.copytree(BUNDLED / DRAFT, root / name))
    started = time.monotonic()
    registry = scan_places([Folder("models", root)])
    assert time.monotonic() - started < MOST_S
    with omlx(registry=registry, default=GOOD) as server:
        with httpx.Client(base_url=server.url, timeout=60) as http:
            assert ask(http, GOOD).status_code == 200
        yield server


@pytest.mark.parametrize("name", few(BROKEN, *[*BROKEN][::8]))
def test_a_broken_folder_is_a_clear_error(running: Running, name: str) -> None:
    before = footprint()
    with httpx.Client(base_url=running.url, timeout=60) as http, Neighbour(running.url) as good:
        started = time.monotonic()
        refusal = ask(http, name)
        took = time.monotonic() - started
        after = ask(http, GOOD)
    error = refusal.json()["error"]
    assert refusal.status_code in (400, 404), refusal.text
    assert error["code"] in {*catalog(), "model_not_found"}
    assert error["type"] == "invalid_request_error"
    assert 10 < len(error["message"]) < 700
    assert took < MOST_S
    assert after.status_code == 200
    assert set(good.statuses) <= {200}
    assert footprint() - before < MOST_BYTES


@pytest.mark.parametrize("name", few(HARMLESS, every=3))
def test_an_odd_folder_is_served_or_refused_with_a_reason(running: Running, name: str) -> None:
    with httpx.Client(base_url=running.url, timeout=60) as http:
        answer = ask(http, name)
        assert answer.status_code in (200, 400), answer.text
        assert ask(http, GOOD).status_code == 200


@pytest.mark.parametrize("name", few(NOT_FINITE, every=4))
def test_a_model_that_computes_nan_is_not_served(running: Running, name: str) -> None:
    with httpx.Client(base_url=running.url, timeout=60) as http:
        for _ in range(2):
            refusal = ask(http, name)
            assert refusal.status_code == 400, refusal.text
            assert refusal.json()["error"]["code"] == "model.not_finite"
        state = http.get(f"/v1/models/{name}").json()
        assert (state["state"], state["prefixes"]) == ("unloaded", None)
        assert ask(http, GOOD).status_code == 200
