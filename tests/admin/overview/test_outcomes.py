"""Failed and cancelled requests of every dialect are listed with status, code, size and times."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.admin.running import API, Administered, administered
from tests.server.running import PATIENCE_S, TARGET

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
KEY = "secret-key"
SAY = [{"role": "user", "content": "Name three rivers."}]
LONG = "word " * 5000
Json = dict[str, Any]

REFUSALS: dict[str, tuple[str, Json, int, str]] = {
    "unknown model": (CHAT, {"model": "no/such", "messages": SAY}, 404, "model.not_found"),
    "no messages": (CHAT, {"model": TARGET, "messages": []}, 400, "request.empty"),
    "bad value": (
        CHAT,
        {"model": TARGET, "messages": SAY, "temperature": -4},
        400,
        "request.range",
    ),
    "completion": (TEXT, {"model": "no/such", "prompt": "x"}, 404, "model.not_found"),
    "responses": (RESPONSES, {"model": "no/such", "input": "x"}, 404, "model.not_found"),
    "anthropic": (
        MESSAGES,
        {"model": "no/such", "messages": SAY, "max_tokens": 4},
        404,
        "model.not_found",
    ),
    "anthropic, no messages": (
        MESSAGES,
        {"model": TARGET, "messages": [], "max_tokens": 4},
        400,
        "request.empty",
    ),
    "unknown address": ("/v2/chat", {}, 404, "http.not_found"),
}
TOO_LONG: dict[str, tuple[str, Json]] = {
    "chat": (CHAT, {"messages": [{"role": "user", "content": LONG}]}),
    "completion": (TEXT, {"prompt": LONG}),
    "responses": (RESPONSES, {"input": LONG}),
    "anthropic": (MESSAGES, {"messages": [{"role": "user", "content": LONG}], "max_tokens": 4}),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Administered]:
    home = tmp_path_factory.mktemp("home")
    with administered(home, api_key=KEY) as running:
        yield running


@pytest.fixture
def since(server: Administered) -> float:
    with server.browser() as client:
        now: float = client.get(f"{API}/live").json()["now"]
    return now


def ended(server: Administered, since: float, count: int = 1) -> list[Json]:
    """Return the requests listed since then; records are written behind their responses."""
    deadline = time.monotonic() + PATIENCE_S
    with server.browser() as client:
        while time.monotonic() < deadline:
            listed: list[Json] = client.get(f"{API}/live?since={since}").json()["answers"]
            if len(listed) >= count:
                return listed
    raise AssertionError("not listed")


def post(server: Administered, path: str, body: Json, key: str = KEY) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.post(f"{server.running.url}{path}", json=body, headers=headers, timeout=60)


@pytest.mark.parametrize("case", REFUSALS)
def test_a_refused_request_is_listed(server: Administered, since: float, case: str) -> None:
    path, body, status, code = REFUSALS[case]
    assert post(server, path, body).status_code == status
    (listed,) = ended(server, since)
    assert (listed["status"], listed["outcome"], listed["path"]) == (status, code, path)
    assert listed["model"] == ("no/such" if code == "model.not_found" else None)
    assert listed["seconds"] >= 0
    with server.browser() as client:
        table = client.get("/admin/parts/overview").text
        assert f"Error {status}" in table
        assert code in table


@pytest.mark.parametrize("case", TOO_LONG)
def test_a_prompt_that_is_too_long_is_listed_with_its_size(
    server: Administered, since: float, case: str
) -> None:
    path, body = TOO_LONG[case]
    assert post(server, path, {"model": TARGET, **body}).status_code == 400
    (listed,) = ended(server, since)
    assert (listed["status"], listed["outcome"]) == (400, "engine.prompt_too_long")
    assert listed["model"] == TARGET
    assert listed["prompt"] == listed["params"]["tokens"] > 4096
    assert (listed["first_token_s"], listed["rate"]) == (None, None)


def test_a_wrong_key_is_listed_and_the_dashboard_is_not(server: Administered, since: float) -> None:
    assert post(server, CHAT, {"model": TARGET, "messages": SAY}, "wrong").status_code == 401
    url = server.running.url
    assert httpx.get(f"{url}/v1/models").status_code == 401
    assert httpx.get(f"{url}/favicon.ico", headers={"x-api-key": KEY}).status_code == 404
    with server.browser(logged_in=False) as client:
        assert client.get(f"{API}/settings").status_code == 401
    listed = ended(server, since, 2)
    assert {(row["path"], row["outcome"]) for row in listed} == {
        (CHAT, "auth.key"),
        ("/v1/models", "auth.missing"),
    }


def test_an_answer_is_listed_with_its_times(server: Administered, since: float) -> None:
    body = {"model": TARGET, "messages": SAY, "max_tokens": 5}
    usage = post(server, CHAT, body).json()["usage"]
    (listed,) = ended(server, since)
    assert (listed["status"], listed["prompt"]) == (200, usage["prompt_tokens"])
    assert 0 < listed["first_token_s"] <= listed["seconds"]


@pytest.mark.parametrize(
    ("path", "prompt"), [(CHAT, {"messages": SAY}), (TEXT, {"prompt": "One two"})]
)
def test_a_stream_that_the_client_cut_is_listed_as_cancelled(
    server: Administered, since: float, path: str, prompt: Json
) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    url = f"{server.running.url}{path}"
    warm = {"model": TARGET, "max_tokens": 1, **prompt}
    assert post(server, path, warm).status_code == 200
    bias = server.running.endless()
    body = {**warm, "stream": True, "max_tokens": 3000, "logit_bias": bias, "speculation": "off"}
    with httpx.stream("POST", url, json=body, headers=headers, timeout=60) as answer:
        next(answer.iter_lines())
    *_, listed = ended(server, since, 2)
    assert (listed["status"], listed["outcome"]) == (499, "ui.answers.cancelled")
    assert (listed["model"], listed["prompt"] > 0) == (TARGET, True)
    assert listed["tokens"] < 3000
