"""Named API keys with official clients against a real server: models, rate, revocation, and a file
that is damaged or lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from omlx.admin.mount import mount
from omlx.errors import ConfigError, TooManyRequests
from omlx.models.hub.downloads import Downloads
from omlx.receipts.kept import AnswerStore
from omlx.server.app import create_app
from omlx.server.http.guard import ApiKeys
from omlx.server.journal.journal import Journal
from omlx.server.request.activity import Activity
from omlx.server.services import Stores, build_services
from omlx.settings.keys import KeyFile
from omlx.settings.schema import Settings
from tests.server.dialects import user
from tests.server.running import DRAFT, HYBRID, OFFLINE, PATIENCE_S, TARGET, Running, serving
from tests.settings.live import live_configuration

MAIN = "the-main-key"
SAYS: dict[str, Any] = {"messages": user("a"), "max_tokens": 1}


@dataclass(frozen=True)
class Keyed:
    url: str
    file: KeyFile
    activity: Activity

    def http(self, key: str | None) -> httpx.Client:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=PATIENCE_S)

    def openai(self, key: str) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0)

    def anthropic(self, key: str) -> anthropic.Anthropic:
        return anthropic.Anthropic(base_url=self.url, api_key=key, max_retries=0)

    def status(self, key: str | None) -> int:
        with self.http(key) as http:
            return http.get("/v1/models").status_code


@contextmanager
def keyed(server: Running, home: Path, main: str | None = MAIN) -> Iterator[Keyed]:
    """An application of its own over the server's engine, with its keys in `home`."""
    journal = Journal(home / "answers", 1 << 24, 86400)
    stores = Stores(Downloads(home, OFFLINE), AnswerStore(home), journal, home)
    services = build_services(server.engine, server.pool, stores, main)
    app = create_app(services, Settings())
    mount(app, services, live_configuration(Settings(home=home)), home)
    with serving(app) as url:
        yield Keyed(url, KeyFile(home), services.activity)


@pytest.fixture
def site(server: Running, tmp_path: Path) -> Iterator[Keyed]:
    with keyed(server, tmp_path) as site:
        yield site


def test_a_named_key_is_good_for_the_models_that_it_names(site: Keyed) -> None:
    key = site.file.add("phone", ["omlx-demo/t*"])
    with site.openai(key) as client:
        assert client.chat.completions.create(model=TARGET, **SAYS).model == TARGET
        assert client.chat.completions.create(model="target", **SAYS).model == TARGET
        assert [model.id for model in client.models.list()] == [TARGET]
        assert client.models.retrieve(TARGET).id == TARGET
        refusals = []
        for name in (HYBRID, "hybrid", "omlx-demo/none"):
            with pytest.raises(openai.NotFoundError) as caught:
                client.chat.completions.create(model=name, **SAYS)
            assert caught.value.code == "model_not_found"
            refusals.append(caught.value.response.text.replace(name, "NAME"))
        assert len(set(refusals)) == 1  # a model that exists is refused as one that does not
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve(HYBRID)
        with pytest.raises(openai.NotFoundError):
            client.embeddings.create(model=HYBRID, input="a")
    with site.anthropic(key) as client:
        assert client.messages.create(model=TARGET, **SAYS).model == TARGET
        assert [model.id for model in client.models.list()] == [TARGET]
        with pytest.raises(anthropic.NotFoundError) as refused:
            client.messages.create(model=HYBRID, **SAYS)
        assert refused.value.body["error"]["type"] == "not_found_error"
        with pytest.raises(anthropic.NotFoundError):
            client.messages.count_tokens(model=HYBRID, messages=SAYS["messages"])


def test_the_lists_and_paths_of_local_apps_have_these_models_alone(site: Keyed) -> None:
    key = site.file.add("phone", ["target"])
    with site.http(key) as http:
        assert [tag["name"] for tag in http.get("/api/tags").json()["models"]] == [
            f"{TARGET}:latest"
        ]
        assert [row["id"] for row in http.get("/api/v0/models").json()["data"]] == [TARGET]
        assert http.get(f"/api/v0/models/{HYBRID}").status_code == 404
        assert http.post("/api/show", json={"model": TARGET}).status_code == 200
        for path, body in (
            ("/api/show", {}),
            ("/api/chat", {"messages": SAYS["messages"]}),
            ("/api/generate", {"prompt": "a"}),
            ("/api/generate", {}),
            ("/api/embed", {"input": "a"}),
            ("/v1/rerank", {"query": "a", "documents": ["b"]}),
            ("/tokenize", {"content": "a"}),
            (f"/v1/models/{HYBRID}/prefixes/probe", SAYS),
        ):
            refused = http.post(path, json={"model": HYBRID, **body})
            assert (path, refused.status_code) == (path, 404)
            assert "model.not_allowed" in refused.text or "model_not_found" in refused.text
        pulls = [http.post("/api/pull", json={"model": name}) for name in (HYBRID, "no/model")]
        assert pulls[0].status_code == 403
        assert pulls[0].text == pulls[1].text


def test_the_default_model_is_not_named_to_a_key_that_may_not_use_it(site: Keyed) -> None:
    key = site.file.add("phone", [DRAFT])
    with site.http(key) as http:
        refused = http.post("/v1/chat/completions", json=SAYS)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "model.none")
        assert TARGET not in refused.text


def test_a_draft_model_of_a_request_is_one_that_the_key_may_use(site: Keyed) -> None:
    narrow = site.file.add("narrow", [TARGET])
    wide = site.file.add("wide", [TARGET, "omlx-demo/draft"])
    body = {"model": TARGET, "draft_model": DRAFT, **SAYS}
    with site.http(narrow) as http:
        refused = http.post("/v1/chat/completions", json=body)
        missing = http.post("/v1/chat/completions", json=body | {"draft_model": "no/draft"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (404, "draft_model")
    assert refused.text.replace(DRAFT, "no/draft") == missing.text
    with site.http(wide) as http:
        assert http.post("/v1/chat/completions", json=body).status_code == 200


def test_what_concerns_the_whole_server_takes_the_main_key(site: Keyed) -> None:
    key = site.file.add("phone")
    calls = (
        ("GET", "/metrics"),
        ("POST", f"/v1/models/{DRAFT}/unload"),
        ("POST", f"/v1/models/{DRAFT}/load"),
        ("DELETE", f"/v1/models/{DRAFT}/prefixes"),
    )
    with site.http(key) as named, site.http(MAIN) as main:
        for method, path in calls:
            refused = named.request(method, path)
            assert (path, refused.status_code) == (path, 403)
            assert refused.json()["error"]["code"] == "auth.main_key"
            # A model is moved by the event loop that owns the pool, which is another server's here.
            if method != "POST":
                assert main.request(method, path).status_code in (200, 202, 204)
        refused = named.post("/api/pull", json={"model": "org/other"})
        assert (refused.status_code, refused.json()["code"]) == (403, "ollama.pull_key")
        assert named.get("/admin/api/models").status_code == 401
        assert named.get("/admin", follow_redirects=False).status_code == 303


def test_over_its_rate_a_key_gets_429_in_each_dialect(site: Keyed) -> None:
    key = site.file.add("phone", rate=1)
    with site.openai(key) as client:
        client.models.list()  # reading is not counted
        client.chat.completions.create(model=TARGET, **SAYS)
        with pytest.raises(openai.RateLimitError) as limited:
            client.chat.completions.create(model=TARGET, **SAYS)
    assert (limited.value.code, limited.value.type) == ("rate_limit_exceeded", "rate_limit_error")
    assert 1 <= int(limited.value.response.headers["retry-after"]) <= 60
    with site.anthropic(key) as client, pytest.raises(anthropic.RateLimitError) as slowed:
        client.messages.create(model=TARGET, **SAYS)
    assert slowed.value.body["error"]["type"] == "rate_limit_error"
    assert 1 <= int(slowed.value.response.headers["retry-after"]) <= 60
    with site.http(key) as http:
        refused = http.post("/api/chat", json={"model": TARGET, "messages": []})
    assert (refused.status_code, refused.json()["code"]) == (429, "auth.rate")
    assert isinstance(refused.json()["error"], str)
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    with site.http(MAIN) as http:
        assert http.post("/v1/chat/completions", json={"model": TARGET, **SAYS}).status_code == 200
    other = site.file.add("other", rate=1)
    with site.openai(other) as client:
        client.chat.completions.create(model=TARGET, **SAYS)
    refused_now = [outcome for outcome in site.activity.outcomes() if outcome.status == 429]
    assert {outcome.arrival.caller.key for outcome in refused_now} == {"phone"}


def test_a_rate_counts_any_minute(tmp_path: Path) -> None:
    """Compared with a count over all arrivals."""
    now = [0.0]
    file = KeyFile(tmp_path)
    key = file.add("phone", rate=3)
    keys = ApiKeys(MAIN, file, clock=lambda: now[0])
    scope = {"method": "POST", "headers": [(b"x-api-key", key.encode())]}
    admitted: list[float] = []
    for step in (0, 10, 10, 10, 29, 0, 1, 0, 20, 60, 0, 0, 0, 59.5, 0.5):
        now[0] += step
        recent = [at for at in admitted if at > now[0] - 60]
        if len(recent) < 3:
            keys.admit(scope)
            admitted.append(now[0])
            continue
        with pytest.raises(TooManyRequests) as refused:
            keys.admit(scope)
        wait_s = refused.value.retry_after_s
        assert recent[-3] + 60 <= now[0] + wait_s < recent[-3] + 61
    assert len(admitted) == 9


def test_keys_come_and_go_while_the_server_runs(site: Keyed) -> None:
    assert site.status("sk-omlx-none") == 401
    key = site.file.add("phone")
    assert site.status(key) == 200
    assert KeyFile(site.file.home).add("other") != key
    assert [site.status(each) for each in (key, MAIN, None)] == [200, 200, 401]
    site.file.revoke("phone")
    with site.http(key) as http:
        refused = http.get("/v1/models")
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
    assert site.file.add("phone") != key
    assert site.status(key) == 401


def test_a_damaged_or_lost_file_changes_nothing_or_opens_nothing(
    server: Running, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with keyed(server, tmp_path, main=None) as site:
        assert site.status(None) == 200  # no key is set
        key = site.file.add("phone")
        assert [site.status(key), site.status(None), site.status("other")] == [200, 401, 401]
        good = site.file.path.read_text()
        record = json.loads(good)["keys"][0]
        for content in (
            good[:-40],
            "",
            "[]",
            good.replace('"keys"', '"kyes"'),
            good.replace(record["sha256"], "abc"),
            good.replace('"*"', ""),
            good.replace("phone", "api_key"),
            good.replace('"requests_per_minute": null', '"requests_per_minute": "60"'),
            json.dumps(json.loads(good) | {"keys": [record, record]}),
        ):
            assert content != good
            site.file.path.write_text(content)
            caplog.clear()
            assert [site.status(key), site.status(None), site.status("other")] == [200, 401, 401]
            assert [entry.message for entry in caplog.records if entry.levelname == "WARNING"] == [
                "API keys not changed"
            ]
            with pytest.raises(ConfigError, match=r"keys\.json is not a valid file"):
                site.file.add("tablet")
            with pytest.raises(ConfigError):
                ApiKeys(None, site.file)  # at a start
        site.file.path.unlink()
        assert [site.status(key), site.status(None)] == [401, 401]
        site.file.path.write_text(good)
        assert [site.status(key), site.status(None)] == [200, 401]
        site.file.revoke("phone")
        assert [site.status(key), site.status(None)] == [401, 401]


def test_an_answer_that_one_key_has_asked_for_is_not_repeated_to_another(site: Keyed) -> None:
    first, second = site.file.add("first"), site.file.add("second", [HYBRID])
    third = site.file.add("third")
    sources = []
    for key in (MAIN, first, first, third):
        with site.http(key) as http:
            again = {"Idempotency-Key": "same"}
            body = {"model": TARGET, **SAYS}
            answer = http.post("/v1/chat/completions", json=body, headers=again)
            sources.append(answer.headers["x-omlx-answer"])
    assert sources == ["new", "new", "repeated", "new"]
    with site.http(second) as http:
        refused = http.post("/v1/chat/completions", json=body, headers={"Idempotency-Key": "same"})
    assert refused.status_code == 404


def test_requests_and_statistics_have_the_name_of_the_key(site: Keyed) -> None:
    for name in ("phone", "tablet"):
        with site.openai(site.file.add(name)) as client:
            client.chat.completions.create(model=TARGET, **SAYS)
    keys = [outcome.arrival.caller.key for outcome in site.activity.outcomes()]
    assert keys == ["phone", "tablet"]
    sums = site.activity.history.sums(1)
    assert {key: usage.requests for (_, _, key), usage in sums.items()} == {"phone": 1, "tablet": 1}
