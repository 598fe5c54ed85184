"""How long models stay in memory: `keep_alive`, requests that only load, models that are listed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from time import sleep
from typing import Any

import httpx
import pytest

from omlx.errors import BadRequest
from omlx.server.dialects.ollama.fields import duration_s
from omlx.settings.schema import Settings
from tests.server.dialects import user
from tests.server.running import PATIENCE_S, TARGET, Running, omlx
from tests.server.spelling import spelling_pool

ONE_TOKEN = {"options": {"num_predict": 1}, "stream": False}
POLL_S = 0.05


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with omlx(Settings(draft_model=None), build=spelling_pool) as running:
        yield running


@pytest.fixture
def http(running: Running) -> httpx.Client:
    return running.http


def listed(http: httpx.Client) -> list[dict[str, Any]]:
    models: list[dict[str, Any]] = http.get("/api/ps").json()["models"]
    return models


def eventually(holds: Callable[[], bool]) -> None:
    for step in count():
        if holds():
            return
        assert step * POLL_S < PATIENCE_S
        sleep(POLL_S)  # the sweep of idle models runs once a second


def test_a_body_without_messages_loads_and_unloads(http: httpx.Client) -> None:
    """What `ollama run`, `ollama stop` and Open WebUI's unload button send."""
    for path, body, content in (
        ("/api/chat", {"messages": []}, {"message": {"role": "assistant", "content": ""}}),
        ("/api/generate", {"prompt": ""}, {"response": ""}),
    ):
        loaded = http.post(path, json={"model": TARGET, **body}).json()
        assert (loaded["done"], loaded["done_reason"]) == (True, "load")
        assert content.items() <= loaded.items()
        assert [model["name"] for model in listed(http)] == [f"{TARGET}:latest"]
        gone = http.post(path, json={"model": TARGET, "keep_alive": 0, **body}).json()
        assert gone["done_reason"] == "unload"
        eventually(lambda: not listed(http))
        # a model that is not in memory is not loaded for this
        assert http.post(path, json={"model": TARGET, "keep_alive": "0s", **body}).is_success
        assert listed(http) == []


def test_a_request_says_how_long_its_model_stays(http: httpx.Client) -> None:
    ask = {"model": TARGET, "messages": user("a"), **ONE_TOKEN}

    def expires(**keep: Any) -> datetime:
        assert http.post("/api/chat", json=ask | keep).is_success
        return datetime.fromisoformat(listed(http)[0]["expires_at"])

    now = datetime.now(UTC)
    assert expires().year > 2300  # as configured: never
    assert timedelta(minutes=9) < expires(keep_alive="10m") - now < timedelta(minutes=20)
    assert timedelta(minutes=9) < expires() - now  # what was said stays
    for endless in (-1, "-1m", 1e300):
        assert expires(keep_alive=endless).year > 2300
    assert http.post("/api/chat", json=ask | {"keep_alive": 0}).is_success
    eventually(lambda: not listed(http))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (5, 5),
        (-1, -1),
        ("5m", 300),
        ("1h30m", 5400),
        ("-1m", -60),
        ("0", 0),
        ("90", 90),
        ("1.5s", 1.5),
        ("250ms", 0.25),
    ],
)
def test_durations(text: float | str, seconds: float) -> None:
    assert math.isclose(duration_s(text), seconds)


@pytest.mark.parametrize("text", ["", "soon", "5 m", "m", "1h30", "٣m", "5m" * 9 + "x", "1e9s"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(BadRequest) as caught:
        duration_s(text)
    assert caught.value.param == "keep_alive"
