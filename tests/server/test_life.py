"""The server as a whole: keys, browsers, silence, and the death of the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import APIError, APIStatusError

from omlx.engine.types import Event
from omlx.models.pool.cost_store import CostStore
from omlx.settings.schema import Settings
from tests.server.dialects import user
from tests.server.running import PATIENCE_S, TARGET, omlx
from tests.storage import homes

CHAT = "/v1/chat/completions"
ASK: dict[str, Any] = {"model": TARGET, "messages": user("hello"), "max_tokens": 2}


def test_a_key_and_allowed_pages() -> None:
    """A page is known however it was written."""
    settings = Settings(allow_origin=("http://app.example", "https://App.example/"))
    settings = settings.model_copy(update={"api_key": "sécret"})
    key = {"Authorization": "Bearer sécret".encode()}
    with omlx(settings) as running:
        http = running.http
        assert http.get("/health").status_code == 200
        assert http.get("/v1/models").status_code == 401
        assert http.get("/v1/models", headers=key).status_code == 200
        for origin in ("http://app.example", "https://app.example"):
            page = {"Origin": origin, "Access-Control-Request-Method": "POST"}
            for answer in (
                http.options(CHAT, headers=page),
                http.post(CHAT, json=ASK, headers={**key, "Origin": origin}),
            ):
                assert answer.status_code == 200
                assert answer.headers["access-control-allow-origin"] == origin
        page = {**key, "Origin": "http://evil.example"}
        assert http.post(CHAT, json=ASK, headers=page).status_code == 403


def test_what_can_be_got_has_a_head(http: httpx.Client) -> None:
    for path in ("/health", "/metrics", "/v1/models", f"/v1/models/{TARGET}"):
        got, head = http.get(path), http.head(path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-type"] == got.headers["content-type"]
    assert (http.head("/v1/models/org/none").status_code, http.head(CHAT).status_code) == (404, 405)


@pytest.mark.parametrize("origin", ["http://localhost:5173", "null", "https://foreign.example"])
def test_a_page_that_is_not_allowed_can_read_why(http: httpx.Client, origin: str) -> None:
    page = {"Origin": origin}
    asks = {
        **page,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, content-type",
        "Access-Control-Request-Private-Network": "true",
    }
    preflight = http.options(CHAT, headers=asks)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-headers"] == "authorization, content-type"
    assert preflight.headers["access-control-allow-private-network"] == "true"
    for answer in (http.get("/v1/models", headers=page), http.post(CHAT, json=ASK, headers=page)):
        assert answer.status_code == 403
        assert answer.headers["access-control-allow-origin"] == origin
        assert f"'{origin}'" in answer.json()["error"]["message"]
        assert "--allow-origin" in answer.json()["error"]["message"]


def test_no_response_allows_credentials_of_other_origins(http: httpx.Client) -> None:
    for origin in ("app://obsidian.md", "http://evil.example"):
        for path in ("/health", "/v1/models"):
            answer = http.get(path, headers={"Origin": origin})
            assert "access-control-allow-credentials" not in answer.headers
    assert "access-control-allow-origin" not in http.get("/v1/models").headers


def test_a_silent_stream_is_kept_open() -> None:
    """With pings where the dialect has them, else with comments."""
    with omlx(keep_alive_s=0.01) as running:
        assert running.http.post(CHAT, json=ASK).status_code == 200
        for path, silence, last in (
            (CHAT, ": keep-alive", "[DONE]"),
            ("/v1/messages?beta=true", "event: ping", "message_stop"),
        ):
            with (
                running.engine.held() as go_on,
                running.http.stream("POST", path, json={**ASK, "stream": True}) as answer,
            ):
                assert answer.headers["content-type"].startswith("text/event-stream")
                lines = answer.iter_lines()
                for _ in range(2):  # each message begins with a ping
                    while next(lines) != silence:
                        pass
                go_on.set()
                rest = [line for line in lines if line.startswith("data: ")]
            assert last in rest[-1]


def test_measured_costs_are_saved_when_the_server_ends(tmp_path: Path) -> None:
    files = CostStore(tmp_path)
    plain = {**ASK, "max_tokens": 8, "speculation": "ngram"}
    with omlx(costs=files) as running:
        http = running.http
        assert http.post(CHAT, json=plain).status_code == 200
        assert not homes.measured(tmp_path, "costs")
    (name,) = homes.measured(tmp_path, "costs")
    assert name.startswith(TARGET.replace("/", "--"))
    with omlx(costs=files) as running:
        http = running.http
        assert (
            http.post(CHAT, json={**ASK, "max_tokens": 1, "speculation": "off"}).status_code == 200
        )
        assert (
            http.get(f"/v1/models/{TARGET}").json()["speculation"]["costs"]["target"]["plain_ms"][0]
            > 0
        )


@pytest.mark.slow
def test_calibration_is_reported_and_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omlx.engine.calibration.SHORT_STEP_SECONDS", 60.0)
    files, ask = CostStore(tmp_path), {**ASK, "max_tokens": 1, "speculation": "off"}
    statuses = []
    for calibrates in (True, False):
        server = omlx(costs=files, calibrates=calibrates)
        with server as running, httpx.Client(base_url=running.url, timeout=60) as http:
            assert http.post(CHAT, json=ask).status_code == 200
            assert running.engine.measured.wait(PATIENCE_S if calibrates else 0) == calibrates
            statuses.append(http.get(f"/v1/models/{TARGET}").json()["speculation"])
    assert [each["calibration"] for each in statuses] == ["done", "off"]
    assert [max(each["costs"]["target"]["widths"]) for each in statuses] == [64, 64]


class Bomb:
    """A loop that takes the engine thread with it."""

    has_work = True

    def register(self) -> None: ...

    def reset_timing(self) -> None: ...

    def step(self) -> list[Event]:
        raise RuntimeError("boom")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_when_the_engine_dies_every_client_gets_an_error() -> None:
    with omlx() as running:
        client = running.openai
        client.chat.completions.create(**ASK)
        bias = running.endless()
        stream = client.chat.completions.create(
            **{**ASK, "max_tokens": 3000, "stream": True, "logit_bias": bias}
        )
        next(iter(stream))
        running.engine.call(lambda: running.engine.attach("bomb", Bomb())).result()
        with pytest.raises(APIError, match="engine stopped"):
            list(stream)
        health = running.http.get("/health")
        assert health.status_code == 503
        assert (health.json()["error"]["code"], health.json()["error"]["type"]) == (
            "engine.dead",
            "server_error",
        )
        message = {"messages": ASK["messages"], "max_tokens": 1}
        refused = running.http.post("/v1/messages", json=message).json()
        assert refused["error"]["type"] == "api_error"
        with pytest.raises(APIStatusError) as caught:
            client.chat.completions.create(**ASK)
        assert caught.value.status_code == 503
