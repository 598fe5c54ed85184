"""Settings files that become invalid while a server runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from omlx.models.pool.speculation import check_value
from omlx.settings.configuration import LiveConfiguration
from omlx.settings.file import FORMAT
from omlx.settings.store import GLOBAL_FILE, MODELS_FILE, Store
from tests.server.dialects import user
from tests.server.running import TARGET, Running, omlx

OWN = {"pool": {"alias": "mine"}, "speculative": {"draft_max": 3}}
RIGHT = {
    GLOBAL_FILE: {"format": FORMAT, "defaults": {"speculative": {"draft_min": 2}}},
    MODELS_FILE: {"format": FORMAT, "models": {TARGET: OWN}},
}
TEXTS = {name: json.dumps(content) for name, content in RIGHT.items()}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[Running]:
    write(home)
    with omlx(configuration=LiveConfiguration((), Store(home, check_value))) as running:
        assert running.pool.catalog.live.current.notes == ()
        yield running


@pytest.fixture
def client(server: Running, home: Path) -> Iterator[Client]:
    write(home)
    with Client(base_url=server.url, timeout=60) as client:
        client.live_configuration = server.pool.catalog.live
        assert speculation(client)["window"]["max"] == 3
        yield client


class Client(httpx.Client):
    """A client beside the watcher of the server's settings files."""

    live_configuration: LiveConfiguration


def write(home: Path) -> None:
    for name, text in TEXTS.items():
        (home / name).write_text(text)


def speculation(client: Client) -> dict[str, Any]:
    """Publish what the files hold, as the watcher does, and return what the server reports."""
    client.live_configuration.refresh()
    answer = client.get(f"/v1/models/{TARGET}")
    assert answer.status_code == 200, answer.text
    record: dict[str, Any] = answer.json()["speculation"]
    return record


@pytest.mark.parametrize(
    ("name", "broken", "code", "place"),
    [
        (MODELS_FILE, TEXTS[MODELS_FILE][:-3], "config.broken", "line 1 column"),
        (MODELS_FILE, "", "config.foreign", MODELS_FILE),
        (
            MODELS_FILE,
            TEXTS[MODELS_FILE].replace("draft_max", "draft_mx"),
            "config.key",
            "speculative.draft_mx",
        ),
        (
            MODELS_FILE,
            TEXTS[MODELS_FILE].replace("3", "300"),
            "config.int",
            "speculative.draft_max",
        ),
        (
            MODELS_FILE,
            TEXTS[MODELS_FILE].replace(TARGET, "org/other").replace("3", "[]"),
            "config.int",
            "org/other",
        ),
        (GLOBAL_FILE, TEXTS[GLOBAL_FILE][:-3], "config.broken", "line 1 column"),
        (GLOBAL_FILE, TEXTS[GLOBAL_FILE].replace("defaults", "default"), "config.key", "default"),
        (GLOBAL_FILE, TEXTS[GLOBAL_FILE].replace("2", "-2"), "config.int", "speculative.draft_min"),
        (
            GLOBAL_FILE,
            TEXTS[GLOBAL_FILE].replace("draft_min", "temperature"),
            "config.key",
            "temperature",
        ),
        (
            GLOBAL_FILE,
            TEXTS[GLOBAL_FILE].replace('"draft_min": 2', '"speculation": "medusa"'),
            "config.strategy",
            "eag",
        ),
    ],
)
def test_what_was_read_last_counts_until_the_file_is_right_again(
    client: Client, home: Path, name: str, broken: str, code: str, place: str
) -> None:
    (home / name).write_text(broken)
    client.live_configuration.refresh()
    for model in ("mine", "target", TARGET, None):
        asked = {"model": model, "messages": user("Hello."), "max_tokens": 1}
        assert client.post("/v1/chat/completions", json=asked).status_code == 200, model
    found = speculation(client)
    assert (found["window"]["min"], found["window"]["max"]) == (2, 3)
    (warning,) = found["warnings"]
    assert warning["code"] == code
    assert str(home / name) in warning["message"]
    assert place in warning["message"]
    assert sorted(path.name for path in home.iterdir()) == [GLOBAL_FILE, MODELS_FILE]
    (home / name).write_text(TEXTS[name].replace("3", "5").replace("2", "1"))
    after = speculation(client)
    assert after["warnings"] == []
    assert (after["window"]["min"], after["window"]["max"]) == (
        (2, 5) if name == MODELS_FILE else (1, 3)
    )


def test_a_file_that_is_taken_away_sets_nothing(client: Client, home: Path) -> None:
    (home / MODELS_FILE).unlink()
    assert (speculation(client)["window"]["max"], speculation(client)["warnings"]) == (64, [])
