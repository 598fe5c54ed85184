"""Settings of one model by command line, file and API: their effect, and when it applies."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from omlx.cli.main import main
from omlx.models.pool.speculation import check_value
from omlx.settings.configuration import LiveConfiguration
from omlx.settings.layers import Source
from omlx.settings.schema import AppliesAt, Scope, Setting, table
from omlx.settings.store import MODELS_FILE, Store
from tests.admin.running import API, Administered, administered, change
from tests.cli.inside import alone
from tests.lanes import few
from tests.server.running import DRAFT, HYBRID, TARGET

__all__ = ["alone"]

ROWS = [row for row in table().values() if row.allowed_in(Scope.MODEL)]
ONE_OF_EACH_KIND = {row.kind: row for row in ROWS}.values()
MINE = f"models/{TARGET}/settings"
CHAT = "/v1/chat/completions"
SAMPLES: dict[str, Any] = {
    "speculation": "ngram:m=16;draft",
    "draft_model": DRAFT,
    "alias": "mine",
    "chat_template_kwargs": {"enable_thinking": False, "深": [1, None]},
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Administered]:
    with administered(tmp_path) as running:
        yield running


@pytest.fixture
def browser(server: Administered) -> Iterator[httpx.Client]:
    with server.browser() as client:
        yield client


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Administered]:
    """A server of which every test leaves the settings as it found them."""
    with administered(tmp_path_factory.mktemp("home")) as running:
        yield running


@pytest.fixture(scope="module")
def visitor(shared: Administered) -> Iterator[httpx.Client]:
    with shared.browser() as client:
        yield client


def stored(home: Path) -> Any:
    """What the file of the models' settings holds, if there is one."""
    file = home / MODELS_FILE
    return json.loads(file.read_text()) if file.exists() else None


def sample(row: Setting) -> Any:
    """Return a value other than the default, as JSON."""
    if row.name in SAMPLES:
        return SAMPLES[row.name]
    if row.choices:
        return next(choice for choice in row.choices if choice != row.default)
    return (
        not row.default
        if row.kind is bool
        else row.kind(row.meta.low + 1 if row.kind is int else row.meta.low)
    )


def ask(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Say hello, then count."}]
    answer = client.post(
        CHAT, json={"model": TARGET, "messages": messages, "max_tokens": 4, "seed": 1, **fields}
    )
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


@pytest.mark.parametrize("row", few(ROWS, *ONE_OF_EACH_KIND), ids=lambda row: row.name)
def test_each_setting_is_the_same_by_command_line_file_and_api(
    row: Setting, alone: Path, shared: Administered, visitor: httpx.Client
) -> None:
    home, value = alone / ".omlx", sample(row)
    text = value if isinstance(value, str) else "on" if value is True else json.dumps(value)
    assert main(["config", "set", row.name, text, "--model", TARGET]) == 0
    by_command = stored(home)
    resolution = LiveConfiguration((), Store(home, check_value)).current.resolve(TARGET)
    assert (resolution[row.name].value, resolution[row.name].source) == (value, Source.MODEL)
    assert main(["config", "unset", row.name, "--model", TARGET]) == 0
    confirm = [row.name] if row.name == "trust_remote_code" else []
    answer = change(visitor, MINE, *confirm, **{row.name: value})
    assert answer.status_code == 200, answer.text
    assert stored(shared.home) == by_command
    view = visitor.get(f"{API}/{MINE}").json()["settings"][row.name]
    assert (view["value"], view["stored"], view["source"], view["set"]) == (
        value,
        value,
        "model",
        True,
    )
    assert change(visitor, MINE, **{row.name: None}).status_code == 200
    view = visitor.get(f"{API}/{MINE}").json()["settings"][row.name]
    assert (view["stored"], view["source"], view["set"]) == (None, "built_in", False)
    assert stored(shared.home) == stored(home)


def test_omitted_settings_stay_and_null_inherits(browser: httpx.Client) -> None:
    change(browser, "settings", draft_max=9, temperature=0.5)
    change(browser, MINE, draft_max=4, ttl_seconds=60)
    change(browser, MINE, temperature=0.25)
    shown = change(browser, MINE, draft_max=None).json()["settings"]
    told = {
        name: (shown[name]["value"], shown[name]["source"])
        for name in ("draft_max", "ttl_seconds", "temperature")
    }
    assert told == {
        "draft_max": (9, "global"),
        "ttl_seconds": (60, "model"),
        "temperature": (0.25, "model"),
    }


def test_two_windows_do_not_overwrite_each_other(browser: httpx.Client) -> None:
    first = browser.get(f"{API}/{MINE}").headers["etag"]
    assert browser.patch(f"{API}/{MINE}", json={"changes": {"draft_max": 4}}).status_code == 428
    change(browser, "settings", draft_max=7)  # another place: no conflict
    for revision, status in ((first, 200), (first, 412)):
        answer = browser.patch(
            f"{API}/{MINE}", json={"changes": {"draft_max": 4}}, headers={"If-Match": revision}
        )
        assert answer.status_code == status
    assert answer.json()["error"]["code"] == "config.outdated"
    assert answer.headers.get("etag") is None


@pytest.mark.parametrize(
    ("changes", "code", "param"),
    [
        ({"porrt": 1}, "config.unknown", "porrt"),
        ({"port": 1}, "config.not_stored", "port"),
        ({"no_draft": True}, "config.not_stored", "no_draft"),
        ({"draft_max": 0}, "config.int", "draft_max"),
        ({"draft_max": "4"}, "config.int", "draft_max"),
        ({"draft_max": True}, "config.int", "draft_max"),
        ({"draft_min": 9, "draft_max": 4}, "config.bounds", "draft_min"),
        ({"speculation": "ngram:q=1"}, "config.strategy", "speculation"),
        ({"speculation": ""}, "config.empty", "speculation"),
        ({"draft_model": "../../etc/passwd"}, "draft.malformed", "draft_model"),
        ({"draft_model": "/etc/passwd"}, "draft.malformed", "draft_model"),
        ({"draft_model": TARGET}, "draft.unfit.same_model", "draft_model"),
        ({"alias": "../../etc/passwd"}, "config.alias_form", "alias"),
        ({"alias": HYBRID}, "config.alias_taken", "alias"),
        ({"alias": "hybrid"}, "config.alias_taken", "alias"),
        ({"trust_remote_code": True}, "config.confirm", "trust_remote_code"),
        ({"chat_template_kwargs": [1]}, "config.object_text", "chat_template_kwargs"),
        ({"ttl_seconds": 1.5}, "config.int", "ttl_seconds"),
        ({"temperature": float("1e9")}, "config.float", "temperature"),
    ],
)
def test_invalid_values_are_refused_by_name_and_nothing_is_stored(
    shared: Administered,
    visitor: httpx.Client,
    changes: dict[str, Any],
    code: str,
    param: str | None,
) -> None:
    before = stored(shared.home)
    answer = change(visitor, MINE, **{"top_k": 3, **changes})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == (code, param)
    assert stored(shared.home) == before


@pytest.mark.parametrize(
    "name", ["org/none", "../../etc", "%2e%2e%2f%2e%2e%2fetc", "omlx-demo/target/..", "~"]
)
def test_a_model_is_a_name_and_never_a_path(
    visitor: httpx.Client, shared: Administered, name: str
) -> None:
    before = stored(shared.home)
    for method in ("GET", "PATCH"):
        body = {"changes": {"draft_max": 4}}
        answer = visitor.request(
            method, f"{API}/models/{name}/settings", json=body, headers={"If-Match": "x"}
        )
        assert answer.status_code in (404, 405)
    assert stored(shared.home) == before


def test_an_alias_is_unique(browser: httpx.Client) -> None:
    assert change(browser, MINE, alias="mine").status_code == 200
    assert ask(browser, model="mine")["model"] == TARGET
    assert change(browser, MINE, alias="mine").status_code == 200
    answer = change(browser, f"models/{HYBRID}/settings", alias="mine")
    assert answer.json()["error"]["params"] == {"where": "alias", "alias": "mine", "model": TARGET}


def test_sampling_defaults_apply_from_the_next_request(browser: httpx.Client) -> None:
    ask(browser)
    applied = change(browser, MINE, max_tokens=2, temperature=0).json()["applied"]
    assert applied == {"max_tokens": "at_once", "temperature": "at_once"}
    assert ask(browser, max_tokens=None)["usage"]["completion_tokens"] == 2
    change(browser, MINE, max_tokens=None)
    assert ask(browser, max_tokens=5)["usage"]["completion_tokens"] == 5


def test_a_draft_model_applies_from_the_next_idle_moment_and_the_response_names_it(
    server: Administered, browser: httpx.Client
) -> None:
    ask(browser)
    fields = {"logit_bias": server.running.endless(), "max_tokens": 400, "stream": True}
    messages = [{"role": "user", "content": "Go on."}]
    with browser.stream(
        "POST", CHAT, json={"model": TARGET, "messages": messages, **fields}
    ) as stream:
        lines = stream.iter_lines()
        next(lines)
        go_on = threading.Event()
        server.running.engine.call(lambda: go_on.wait(60))
        answer = change(browser, MINE, draft_model=DRAFT)
        assert answer.json()["applied"] == {"draft_model": "when_idle"}
        assert answer.json()["speculation"]["draft_configured"] == DRAFT
        go_on.set()
        list(lines)
    told = ask(browser, max_tokens=40, speculation="draft", num_draft_tokens=2)
    assert told["timings"]["drafters"][DRAFT]["proposed"] > 0
    assert change(browser, MINE, speculation="off").json()["applied"] == {"speculation": "at_once"}
    assert ask(browser, max_tokens=40)["timings"]["drafters"] == {}


def test_a_pinned_model_says_so(browser: httpx.Client) -> None:
    change(browser, MINE, pinned=True)
    ask(browser)
    assert browser.get(f"/v1/models/{TARGET}").json()["pinned"] is True


def test_prefix_bytes_and_memory_limit_apply_at_once(
    server: Administered, browser: httpx.Client
) -> None:
    ask(browser)
    answer = change(browser, "settings", prefix_bytes="1MB", memory_limit="8GB").json()
    assert answer["applied"] == {"prefix_bytes": "at_once", "memory_limit": "at_once"}
    assert browser.get(f"/v1/models/{TARGET}").json()["prefixes"]["max_bytes"] == 1 << 20
    assert server.running.pool.memory.limit == 8 << 30
    assert ask(browser)["timings"]["cache_n"] > 0
    change(browser, "settings", memory_limit="2MB")
    browser.post(f"{API}/models/{TARGET}/unload")
    messages = [{"role": "user", "content": "Hello."}]
    refused = browser.post(CHAT, json={"model": TARGET, "messages": messages})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "model.no_room")
    change(browser, "settings", memory_limit=None)
    ask(browser)


def test_a_shorter_context_applies(browser: httpx.Client) -> None:
    ask(browser)
    assert table()["max_context"].meta.applies is AppliesAt.RELOAD
    assert change(browser, MINE, max_context=16).json()["applied"] == {"max_context": "at_once"}
    messages = [{"role": "user", "content": "word " * 40}]
    answer = browser.post(CHAT, json={"model": TARGET, "messages": messages})
    assert answer.json()["error"]["code"] == "context_length_exceeded"
