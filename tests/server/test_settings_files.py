"""Settings while a server runs: of a request before configured ones; files that break."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import pytest

from omlx.draft_length import DraftLength
from omlx.models.pool.speculation import check_value
from omlx.settings.configuration import LiveConfiguration
from omlx.settings.file import FORMAT
from omlx.settings.schema import Scope, Settings, table
from omlx.settings.store import GLOBAL_FILE, MODELS_FILE, Store
from omlx.text.constraint import BudgetMask
from tests.server.dialects import user
from tests.server.running import DRAFT, HYBRID, TARGET, Running, omlx

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
        (
            MODELS_FILE,
            TEXTS[MODELS_FILE].replace(TARGET, "org/other").replace("3", "[]"),
            "config.int",
            "org/other",
        ),
        (GLOBAL_FILE, TEXTS[GLOBAL_FILE].replace("defaults", "default"), "config.key", "default"),
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


Seen: TypeAlias = Callable[[Running], object]

ROWS = [
    name for name, row in table().items() if row.allowed_in(Scope.REQUEST) and name != "receipt"
]
"""The engine knows no receipts: `tests/cli/test_verify.py` has that setting."""

TOKENS = {
    "num_draft_tokens": (6, 3),
    "draft_min": (6, 3),
    "draft_max": (6, 3),
    "max_tokens": (6, 3),
    "top_k": (6, 3),
}
GIVEN: dict[str, tuple[Any, Any]] = {
    **dict.fromkeys(ROWS, (0.25, 0.75)),
    **TOKENS,
    "thinking_budget": (6, 3),
    "speculation": ("off", "ngram:n=4"),
    "draft_model": (HYBRID, DRAFT),
    "chat_template_kwargs": ({"enable_thinking": True}, {"enable_thinking": False}),
}
"""By setting: the configured value, and the request's."""


def draft_length(running: Running) -> DraftLength:
    assert running.engine.newest is not None
    assert running.engine.newest.speculation.draft_length is not None
    return running.engine.newest.speculation.draft_length


def seen(running: Running, name: str) -> object:
    """The request as the engine received it."""
    request = running.engine.newest
    assert request is not None
    match name:
        case "speculation":
            return str(request.speculation.strategy)
        case "draft_model":
            return running.pool.last_used.draft if running.pool.last_used is not None else None
        case "num_draft_tokens":
            return draft_length(running).fixed
        case "draft_min":
            return draft_length(running).min
        case "draft_max":
            return draft_length(running).max
        case "max_tokens":
            return request.max_tokens
        case "chat_template_kwargs":
            return len(request.tokens)
        case "thinking_budget":
            return request.mask.budget if isinstance(request.mask, BudgetMask) else None
        case _:
            return getattr(request.sampling, name)


OWN_SERVER = ("speculation", "draft_model", "num_draft_tokens", "chat_template_kwargs")
"""Settings that change what others do."""


@pytest.fixture(scope="module")
def configured() -> Iterator[Running]:
    """A server on which all other settings are configured."""
    values = {name: GIVEN[name][0] for name in ROWS if name not in OWN_SERVER}
    with omlx(Settings(**values)) as running:
        yield running


@pytest.mark.parametrize("name", [name for name in ROWS if name not in OWN_SERVER])
def test_what_a_request_says_goes_before_what_is_configured(configured: Running, name: str) -> None:
    before, said = GIVEN[name]
    assert found_by_turns(configured, name) == [before, said, before]


@pytest.mark.parametrize("name", OWN_SERVER)
def test_what_a_request_says_goes_before_a_configured_draft_or_template(name: str) -> None:
    before, said = GIVEN[name]
    with omlx(Settings(**{name: before})) as running:
        found = found_by_turns(running, name)
    if name == "chat_template_kwargs":
        assert found[0] == found[2] > found[1]  # it opens a thought, which is a token or more
    elif name == "draft_model":
        assert found == [before, said, said]  # who has no opinion takes the one that is loaded
    else:
        assert found == [before, said, before]


def found_by_turns(running: Running, name: str) -> list[object]:
    """Ask without the field, with it and without it; return what the engine received."""
    ask: dict[str, Any] = {"model": TARGET, "messages": user("Hello.")}
    if name != "max_tokens":
        ask["max_tokens"] = 2
    found = []
    for more in ({}, {name: GIVEN[name][1]}, {}):
        answer = running.http.post("/v1/chat/completions", json={**ask, **more})
        answer.raise_for_status()
        found.append(seen(running, name))
    return found
