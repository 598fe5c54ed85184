"""Requests on a real socket: listed with their client, stopped with an error that says so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from omlx.telemetry import log
from tests.admin.running import API, Administered, administered, change
from tests.server.running import TARGET

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
PART = "/admin/parts/activity/ended"
SAY = [{"role": "user", "content": "Go on about swordfish."}]
Json = dict[str, Any]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Administered]:
    with administered(tmp_path_factory.mktemp("home")) as running:
        running.running.engine.measured.set()
        yield running


def running_id(browser: httpx.Client) -> str:
    """The id of the response that is being generated, once there is one."""
    while True:
        requests = browser.get(f"{API}/live").json()["requests"]
        if requests and requests[0]["tokens"]:
            return str(requests[0]["group"])


def ended(browser: httpx.Client, since: float = 0.0) -> list[Json]:
    answers: list[Json] = browser.get(f"{API}/live", params={"since": since}).json()["answers"]
    return answers


def endless(server: Administered, path: str) -> Json:
    """A body under which the model generates until it is stopped."""
    if path == MESSAGES:
        return {"model": TARGET, "messages": SAY, "max_tokens": 4000, "temperature": 1.0}
    if path == RESPONSES:
        return {"model": TARGET, "input": SAY, "max_output_tokens": 3900}
    return {"model": TARGET, "messages": SAY, "max_tokens": 3900}


def events(answer: httpx.Response) -> list[Json]:
    data = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    return [json.loads(event) for event in data if event != "[DONE]"]


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_a_stopped_stream_ends_with_an_error_of_its_api(server: Administered, path: str) -> None:
    with server.browser() as browser, server.browser(logged_in=False) as client:
        warm = client.post(CHAT, json={"model": TARGET, "messages": SAY, "max_tokens": 1})
        assert warm.status_code == 200
        since = browser.get(f"{API}/live").json()["now"]
        body = {
            **endless(server, path),
            "stream": True,
            "logit_bias": server.running.endless(),
            "ignore_eos": True,
        }
        if path == MESSAGES:
            del body["logit_bias"]
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(client.post, path, json=body)
            id = running_id(browser)
            assert browser.post(f"{API}/requests/{id}/stop").status_code == 204
            answer = asked.result()
        assert answer.status_code == 200
        last = events(answer)[-1]
        error = last["response"]["error"] if path == RESPONSES else last["error"]
        assert error["message"] == "The request was stopped in the dashboard."
        server.running.engine.wait_until_ended(id)
        (listed,) = ended(browser, since)
        assert (listed["status"], listed["outcome"], listed["id"]) == (499, "request.stopped", id)
        assert 0 < listed["tokens"] < 3900
        assert browser.get(f"{API}/live").json()["requests"] == []
        again = browser.post(f"{API}/requests/{id}/stop")
        assert (again.status_code, again.json()["error"]["code"]) == (404, "request.gone")


def test_a_stopped_request_without_a_stream_gets_the_error_as_its_response(
    server: Administered,
) -> None:
    with server.browser() as browser, server.browser(logged_in=False) as client:
        body = {**endless(server, CHAT), "ignore_eos": True}
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(client.post, CHAT, json=body)
            browser.post(f"{API}/requests/{running_id(browser)}/stop")
            answer = asked.result()
        assert (answer.status_code, answer.json()["error"]["code"]) == (499, "request.stopped")


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
