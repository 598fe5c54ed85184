"""Requests on a real socket: listed with their client, stopped with an error that says so."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest

from omlx.admin import activity, overview
from omlx.admin.web.addresses import ACTIVITY
from omlx.engine.types import Event as EngineEvent
from omlx.engine.types import TokensCommitted
from omlx.server.event_dispatcher import EventDispatcher
from omlx.telemetry import log
from tests.admin.running import API, Administered, administered, change
from tests.server.running import PATIENCE_S, TARGET

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
PART = "/admin/parts/activity/ended"
SAY = [{"role": "user", "content": "Go on about swordfish."}]
STOPPED = "The request was stopped in the dashboard."
Json = dict[str, Any]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Administered]:
    with administered(tmp_path_factory.mktemp("home")) as running:
        yield running


def active_id(browser: httpx.Client, tokens: int = 0) -> str:
    """The id of the response that is being generated, once it has so many tokens."""
    while True:
        requests = browser.get(f"{API}/live").json()["requests"]
        if requests and requests[0]["tokens"] >= tokens:
            return str(requests[0]["group"])


def ended(browser: httpx.Client, since: float = 0.0) -> list[Json]:
    answers: list[Json] = browser.get(f"{API}/live", params={"since": since}).json()["answers"]
    return answers


def body_of(path: str, tokens: int) -> Json:
    if path == RESPONSES:
        return {"model": TARGET, "input": SAY, "max_output_tokens": tokens}
    return {"model": TARGET, "messages": SAY, "max_tokens": tokens}


@contextmanager
def held(server: Administered) -> Iterator[None]:
    """Nothing is generated while the block runs."""
    release = Event()
    server.running.engine.call(lambda: release.wait(PATIENCE_S))
    try:
        yield
    finally:
        release.set()


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_a_stopped_stream_ends_with_an_error(
    server: Administered, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped, deliver = Event(), EventDispatcher.__call__

    def deliver_and_wait(dispatcher: EventDispatcher, events: Sequence[EngineEvent]) -> None:
        """On the engine thread: it goes no further than the first tokens."""
        deliver(dispatcher, events)
        if any(isinstance(event, TokensCommitted) for event in events):
            assert stopped.wait(PATIENCE_S)

    with server.browser() as browser, server.browser(logged_in=False) as client:
        client.post(CHAT, json=body_of(CHAT, 1))
        since = browser.get(f"{API}/live").json()["now"]
        monkeypatch.setattr(EventDispatcher, "__call__", deliver_and_wait)
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(client.post, path, json=body_of(path, 3900) | {"stream": True})
            id = active_id(browser, tokens=1)
            assert browser.post(f"{API}/requests/{id}/stop").status_code == 204
            stopped.set()
            answer = asked.result()
        assert answer.status_code == 200
        data = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
        last = [json.loads(event) for event in data if event != "[DONE]"][-1]
        error = last["response"]["error"] if path == RESPONSES else last["error"]
        assert error["message"] == STOPPED
        server.running.engine.wait_until_ended(id)
        (listed,) = ended(browser, since)
        assert (listed["status"], listed["outcome"], listed["id"]) == (499, "request.stopped", id)
        assert 0 < listed["tokens"] < 3900
        assert browser.get(f"{API}/live").json()["requests"] == []
        again = browser.post(f"{API}/requests/{id}/stop")
        assert (again.status_code, again.json()["error"]["code"]) == (404, "request.gone")


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_a_request_stopped_before_its_first_token_gets_the_error_as_response(
    server: Administered, path: str
) -> None:
    with (
        server.browser() as browser,
        server.browser(logged_in=False) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        client.post(CHAT, json=body_of(CHAT, 1))
        with held(server):
            asked = pool.submit(client.post, path, json=body_of(path, 16))
            browser.post(f"{API}/requests/{active_id(browser)}/stop")
            answer = asked.result()
        assert answer.status_code == 499
        error = answer.json()["error"]
        assert (error["code"], error["message"]) == ("request.stopped", STOPPED)
        assert error["type"] == "invalid_request_error"


def test_stopping_needs_a_session(server: Administered) -> None:
    with server.browser(logged_in=False) as client:
        assert client.post(f"{API}/requests/x/stop").status_code == 401


def test_what_generates_nothing_is_listed_too(server: Administered) -> None:
    with server.browser() as browser:
        since = browser.get(f"{API}/live").json()["now"]
        sent = {"headers": {"User-Agent": "claude-cli/2.0.1 (external, cli)"}}
        browser.post("/tokenize", json={"model": TARGET, "content": "a b"}, **sent)
        browser.post(CHAT, json={"model": "no/such", "messages": SAY}, **sent)
        browser.post(
            CHAT,
            json={"model": TARGET, "messages": SAY, "max_tokens": 2, "ignore_eos": True},
            **sent,
        )
        listed = sorted(ended(browser, since), key=lambda answer: answer["number"])
        assert {answer["client"] for answer in listed} == {"claude-cli/2.0.1"}
        assert {(answer["status"], answer["path"], answer["finish"]) for answer in listed} == {
            (200, "/tokenize", None),
            (404, CHAT, None),
            (200, None, "length"),
        }


@pytest.mark.parametrize(
    ("path", "part", "count"),
    [
        (ACTIVITY, PART, activity.FIRST_ANSWERS),
        ("/admin", "/admin/parts/overview", overview.FIRST_ANSWERS),
    ],
)
def test_the_page_has_the_newest_requests_and_its_part_has_all(
    server: Administered, path: str, part: str, count: int
) -> None:
    with server.browser() as browser:
        for _ in range(count + 1):
            browser.post(CHAT, json={"model": "no/such", "messages": SAY})
        first, refreshed = (
            re.findall(r'<tr id="(answer-\d+)"', browser.get(address).text)
            for address in (path, part)
        )
    assert len(first) == count
    assert (refreshed[:count], len(refreshed) > count) == (first, True)


def test_prompts_are_shown_only_if_a_setting_says_so(tmp_path: Path) -> None:
    body = {"model": TARGET, "messages": SAY, "max_tokens": 1}
    log.set_up(tmp_path)
    try:
        with administered(tmp_path) as server, server.browser() as browser:
            browser.post(CHAT, json=body)
            assert "swordfish" not in browser.get(PART).text
            assert change(browser, "settings", record_prompts=True).status_code == 200
            browser.post(CHAT, json=body)
            assert browser.get(PART).text.count("user: Go on about swordfish.") == 1
            assert change(browser, "settings", record_prompts=None).status_code == 200
            browser.post(CHAT, json=body)
            assert browser.get(PART).text.count("swordfish") == 1
    finally:
        log.tear_down()
    assert "swordfish" not in (tmp_path / "logs" / "omlx.log").read_text()


def test_html_in_names_and_agents_is_text(server: Administered) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    with server.browser() as browser:
        browser.post(
            CHAT, json={"model": hostile, "messages": SAY}, headers={"User-Agent": hostile}
        )
        page = browser.get("/admin/activity").text
    assert hostile not in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page
