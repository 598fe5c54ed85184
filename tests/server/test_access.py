"""Log lines of real requests, which never hold their text."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.types import Message, Receive, Scope, Send

from omlx.server.access import AccessLog
from omlx.telemetry import log
from tests.server.dialects import user
from tests.server.running import DRAFT, TARGET, Running, serving

CHAT = "/v1/chat/completions"
SECRET = "swordfish"
ASK: dict[str, Any] = {"model": TARGET, "messages": user(SECRET), "max_tokens": 5}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    log.set_up(tmp_path)
    yield tmp_path
    log.tear_down()


def requests(home: Path, server: Running | None = None) -> list[dict[str, Any]]:
    """The lines of all requests that `server` has answered: each is written behind its answer, and
    before the next one, which has no line."""
    if server is not None:
        server.http.get("/health").raise_for_status()
    lines = [json.loads(line) for line in (home / "logs" / "omlx.log").read_text().splitlines()]
    return [line for line in lines if line["logger"] == "omlx.request"]


@pytest.mark.parametrize("stream", [False, True])
def test_one_line_a_request_with_what_happened(home: Path, server: Running, stream: bool) -> None:
    assert server.http.post(CHAT, json={**ASK, "stream": stream}).status_code == 200
    (line,) = requests(home, server)
    assert (line["method"], line["path"], line["status"], line["model"]) == (
        "POST",
        CHAT,
        200,
        TARGET,
    )
    assert line["id"].startswith("chatcmpl-")
    assert 1 <= line["predicted_n"] <= 5
    assert line["rate"] >= 0
    assert 0 <= line["accepted"] <= line["proposed"]
    assert line["reason"] in ("stop", "length")


def test_the_line_says_who_drafted_and_why_not(home: Path, server: Running) -> None:
    for fields in (
        {"speculation": "draft", "num_draft_tokens": 3},
        {"speculation": "off"},
        {"max_tokens": 1},
    ):
        timings = server.http.post(CHAT, json={**ASK, **fields}).json()["timings"]
        if timings["draft_n"]:
            counts = f"{timings['draft_n_accepted']}/{timings['draft_n']}"
    drafted, plain, short = requests(home, server)
    assert (drafted["strategy"], drafted["speculation"]) == ("draft", "spec.on")
    assert (drafted["drafters"], drafted["gates"]) == (f"{DRAFT} {counts}", f"{DRAFT} on")
    assert (plain["strategy"], plain["speculation"]) == ("off", "spec.off.requested")
    assert (plain["drafters"], plain["gates"]) == ("", "")
    assert short["gates"].split(", ") == [
        "ngram observing (spec.observing)",
        f"{DRAFT} observing (spec.observing)",
        "mtp off (spec.off.head_unused)",
    ]


def test_refusals_have_a_code_and_nothing_has_the_prompt(home: Path, server: Running) -> None:
    bad = [
        {"max_tokens": 0},
        {"model": SECRET + "/x"},
        {"chat_template_kwargs": {"tools": SECRET}},
        {"draft_model": "x"},
    ]
    for fields in bad:
        server.http.post(CHAT, json={**ASK, **fields})
    server.http.post(CHAT, json=ASK)
    codes = [line.get("error") for line in requests(home, server)]
    assert codes == [
        "request.range",
        "model.not_found",
        "template.reserved",
        "draft.not_found",
        None,
    ]
    assert SECRET not in (home / "logs" / "omlx.log").read_text()


def test_a_client_that_goes_away_is_499(home: Path, server: Running) -> None:
    assert server.http.post(CHAT, json={**ASK, "max_tokens": 1}).status_code == 200
    body = {**ASK, "stream": True, "max_tokens": 3000, "logit_bias": server.endless()}
    with server.http.stream("POST", CHAT, json=body) as answer:
        first = json.loads(next(answer.iter_lines()).removeprefix("data: "))
    server.engine.wait_until_ended(first["id"])
    assert server.http.post(CHAT, json={**ASK, "max_tokens": 1}).status_code == 200
    statuses = {line["id"]: line["status"] for line in requests(home, server)}
    assert statuses[first["id"]] == 499
    assert sorted(statuses.values()) == [200, 200, 499]


def test_a_fault_of_ours_is_500_logged_and_says_nothing(home: Path) -> None:
    async def broken() -> None:
        raise ValueError(SECRET)

    app = FastAPI(openapi_url=None, middleware=[Middleware(AccessLog)])
    app.add_api_route("/broken", broken)
    with serving(app) as url:
        answer = httpx.get(f"{url}/broken")
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "server.failed"
    text = (home / "logs" / "omlx.log").read_text()
    assert SECRET not in answer.text + text
    assert "ValueError" in text
    (line,) = [line for line in requests(home) if line["path"] == "/broken"]
    assert line["status"] == 500
    assert "drafters" not in line


@pytest.mark.parametrize(
    ("path", "kind"), [(CHAT, "server_error"), ("/v1/messages", "api_error"), ("/api/chat", None)]
)
def test_a_request_that_the_end_of_a_drain_cancels_gets_an_error_in_its_dialect(
    path: str, kind: str | None
) -> None:
    sent: list[Any] = []

    async def cancelled() -> None:
        waiting = asyncio.Event()

        async def forever(scope: Scope, receive: Receive, send: Send) -> None:
            waiting.set()
            await asyncio.Event().wait()

        async def send(message: Message) -> None:
            sent.append(message)

        async def receive() -> Message:
            return {"type": "http.disconnect"}

        scope = {"type": "http", "method": "POST", "path": path, "headers": []}
        task = asyncio.create_task(AccessLog(forever)(scope, receive, send))
        await waiting.wait()
        task.cancel()
        await task

    asyncio.run(cancelled())
    start, body = sent
    error = json.loads(body["body"])
    assert start["status"] == 503
    details = error if kind is None else error["error"]
    assert details["code"] == "engine.stopped"
    assert details.get("type") == kind
