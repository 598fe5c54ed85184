"""Requests on a real socket: listed with their client, stopped with an error that says so."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from itertools import product
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import httpx
import pytest
from markupsafe import escape

from omlx.admin import activity, overview
from omlx.admin.activity import (
    BARS,
    ActiveView,
    EndedView,
    history_view,
    statistics_record,
    statistics_view,
)
from omlx.admin.views import LoadingView, answer_view, phases
from omlx.admin.web import formats
from omlx.admin.web.addresses import ACTIVITY
from omlx.admin.web.rendering import render
from omlx.catalog import catalog
from omlx.engine.types import Event as EngineEvent
from omlx.engine.types import TokensCommitted
from omlx.errors import Reason
from omlx.records import RequestStats
from omlx.server.http.guard import Arrival
from omlx.server.request.activity import Outcome
from omlx.server.request.stream import EventDispatcher
from omlx.telemetry import log
from omlx.telemetry.usage import FAILURE, MAX_MINUTES, MINUTE_S, Timeline, Usage
from tests.admin.running import API, Administered, administered, change
from tests.server.running import PATIENCE_S, TARGET

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
PART = "/admin/parts/activity/ended"
SAY = [{"role": "user", "content": "Go on about swordfish."}]
STOPPED = "The request was stopped in the dashboard."
Json = dict[str, Any]


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
        with server.running.engine.held():
            asked = pool.submit(client.post, path, json=body_of(path, 16))
            browser.post(f"{API}/requests/{active_id(browser)}/stop")
            answer = asked.result()
        assert answer.status_code == 499
        error = answer.json()["error"]
        assert (error["code"], error["message"]) == ("request.stopped", STOPPED)
        assert error["type"] == "invalid_request_error"


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


def detail(browser: httpx.Client, number: int | None = None) -> str:
    """The newest request in detail, or that of this number."""
    newest = max(answer["number"] for answer in ended(browser))
    shown = browser.get(f"/admin/parts/activity/request/{number or newest}")
    assert shown.status_code == 200
    return shown.text


def test_texts_are_shown_only_if_a_setting_says_so(tmp_path: Path) -> None:
    body: Json = {"model": TARGET, "messages": SAY, "max_tokens": 24}
    log.set_up(tmp_path)
    try:
        with administered(tmp_path) as server, server.browser() as browser:
            browser.post(CHAT, json=body)
            body["logit_bias"] = server.running.endless()
            assert "swordfish" not in detail(browser)
            assert change(browser, "settings", record_prompts=True).status_code == 200
            answer = browser.post(CHAT, json=body).json()["choices"][0]["message"]["content"]
            shown = detail(browser)
            assert "user: Go on about swordfish." in shown
            assert answer.strip()
            assert str(escape(answer)).strip() in shown
            number = re.search(r"/admin/chat\?request=(\d+)", shown)
            assert number is not None
            replayed = browser.get(f"{API}/requests/{number[1]}/conversation").json()
            (told,) = replayed["conversations"]
            assert told["messages"][0]["text"] == "Go on about swordfish."
            assert told["messages"][1] | {"text": answer} == told["messages"][1]
            assert {"temperature", "seed", "maxTokens", "model"} <= told["settings"].keys()
            assert change(browser, "settings", record_prompts=None).status_code == 200
            browser.post(CHAT, json=body)
            assert "swordfish" not in detail(browser)
            gone = browser.get(f"{API}/requests/{int(number[1]) + 1}/conversation")
            assert gone.status_code == 404
    finally:
        log.tear_down()
    assert "swordfish" not in (tmp_path / "logs" / "omlx.log").read_text()


def test_the_settings_in_effect_have_their_sources(tmp_path: Path) -> None:
    with administered(tmp_path) as server, server.browser() as browser:
        change(browser, f"models/{TARGET}/settings", speculation="ngram", top_k=7)
        change(browser, "settings", top_p=0.9)
        profile = f"models/{TARGET}/settings?profile=calm"
        revision = browser.get(f"{API}/{profile}").headers["etag"]
        changes = {"changes": {"min_p": 0.25}}
        browser.patch(f"{API}/{profile}", json=changes, headers={"If-Match": revision})
        body = {**body_of(CHAT, 4), "model": f"{TARGET}:calm", "temperature": 0.5}
        assert browser.post(CHAT, json=body).status_code == 200
        rows = re.findall(
            r'<th scope="row">([^<]+)</th>\s*<td><code>([^<]+)</code></td>\s*'
            r'<td class="quiet">([^<]+)</td>',
            detail(browser),
        )
    found = {name: (value, source) for name, value, source in rows}
    assert found["Temperature"] == ("0.5", "the request itself")
    assert found["Max output tokens"] == ("4", "the request itself")
    assert found["Min-p"] == ("0.25", "this profile&#39;s settings")
    assert found["Top-k"] == ("7", "this model&#39;s settings")
    assert found["Top-p"] == ("0.9", "settings for all models")
    assert found["Strategy"] == ("ngram", "this model&#39;s settings")
    assert found["Presence penalty"][1] == "default"


def test_refused_requests_have_the_model_that_they_named(server: Administered) -> None:
    with server.browser() as browser:
        since = browser.get(f"{API}/live").json()["now"]
        browser.post(CHAT, json={"model": "no/such", "messages": SAY})
        browser.post(CHAT, json={"model": TARGET, "messages": []})
        browser.post(
            CHAT, json={"model": TARGET, "messages": [{"role": "user", "content": "x " * 9999}]}
        )
        browser.post("/v1/embeddings", content='{"model": "emb\u00e9d", "input": {}}')
        listed = sorted(ended(browser, since), key=lambda answer: answer["number"])
        assert [answer["model"] for answer in listed] == ["no/such", TARGET, TARGET, "embéd"]
        shown = detail(browser, listed[1]["number"])
        assert "messages must not be empty." in shown
        assert CHAT in shown
        part = browser.get(PART).text
        assert part.count(TARGET) >= 2
        forgotten = browser.get("/admin/activity/requests/999999")
        assert forgotten.status_code == 404
        assert "no longer among the newest" in forgotten.text


@pytest.mark.parametrize("load_s", [0.0, 2.0])
def test_the_phases_add_up_to_the_duration(load_s: float) -> None:
    stats = RequestStats(9, 3, 60, 250.0, 500.0, 1000.0, 1, {}, Reason("spec.on"))
    seen = phases(Outcome(9.0, 200, 5.0, "m", stats=stats, arrival=Arrival(0.0, load_s=load_s)))
    assert sum(phase.seconds for phase in seen) == pytest.approx(5.0)
    assert sum(phase.share for phase in seen) == pytest.approx(1.0)
    names = ["preparing", "queue", "prefill", "decode"]
    assert [phase.name for phase in seen] == (["loading"] if load_s else []) + names
    assert [phase.name for phase in phases(Outcome(9.0, 404, 0.25, "m"))] == ["preparing"]


def test_views_of_pages_are_no_lines_of_the_log(tmp_path: Path) -> None:
    log.set_up(tmp_path)
    try:
        with administered(tmp_path) as server, server.browser() as browser:
            for path in ("/admin", "/admin/models", "/admin/parts/models", "/admin/api/settings"):
                assert browser.get(path).status_code == 200
            for path in ("/admin/models/no/such", "/admin/parts/model/unknown"):
                assert browser.get(path).status_code == 404
            browser.post(CHAT, json=body_of(CHAT, 1))
    finally:
        log.tear_down()
    lines = [json.loads(line) for line in (tmp_path / "logs/omlx.log").read_text().splitlines()]
    asked = {
        f"{API}/login",
        "/admin",
        "/admin/models",
        "/admin/parts/models",
        f"{API}/settings",
        "/admin/models/no/such",
        "/admin/parts/model/unknown",
        CHAT,
    }
    # Servers of other tests may run in this process, and share the log.
    paths = [line["path"] for line in lines if line["logger"] == log.REQUESTS]
    assert [path for path in paths if path in asked] == [
        f"{API}/login",
        "/admin/models/no/such",
        "/admin/parts/model/unknown",
        CHAT,
    ]


def test_a_loading_model_names_its_stage() -> None:
    def shown(share: float) -> str:
        loading = [LoadingView("m", share, 1)]
        view = ActiveView([], loading)
        return render("activity/active_part.html", "en", view=view)

    assert "loading model" in shown(0.34)
    assert "34\u202f%" in shown(0.34)
    assert "testing passes" in shown(1.0)
    assert "100\u202f%" not in shown(1.0)


def test_html_in_names_and_agents_is_text(server: Administered) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    with server.browser() as browser:
        browser.post(
            CHAT, json={"model": hostile, "messages": SAY}, headers={"User-Agent": hostile}
        )
        page = browser.get("/admin/activity").text
    assert hostile not in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page


TODAY = date(2026, 3, 14)
HELLO = [{"role": "user", "content": "Count to three, then to five, and say why. " * 12}]
PAGE = "/admin/activity/statistics"


def test_prefixes_saved_what_their_tokens_would_have_taken_in_the_same_model() -> None:
    measured = Usage(requests=1, prompt=200, predicted=10, measured_n=200, measured_s=4.0)
    restored = Usage(requests=2, prompt=1000, cached=900, predicted=30, draft_saved_s=1.5)
    sums = {
        ("2026-03-12", "a", ""): measured,
        ("2026-03-14", "a", "laptop"): restored,
        ("2026-03-14", "b", "laptop"): restored + FAILURE,
    }
    view = statistics_view(sums, 3, TODAY)
    assert [line.name for line in view.by_model] == ["a", "b"]
    known, unmeasured = view.by_model
    assert (known.prefix_saved_s, known.saved_s) == (pytest.approx(18.0), pytest.approx(19.5))
    assert (unmeasured.prefix_saved_s, unmeasured.usage.failed) == (None, 1)
    assert view.total.prefix_saved_s == pytest.approx(18.0)
    assert view.total.cached_share == pytest.approx(1800 / 2200)
    assert [line.name for line in view.by_day] == ["2026-03-14", "2026-03-12"]
    assert [(bar.day, bar.value) for bar in view.tokens] == [
        ("2026-03-12", 10),
        ("2026-03-13", 0),
        ("2026-03-14", 60),
    ]
    assert [bar.height for bar in view.tokens] == [pytest.approx(1 / 6), 0, 1]
    assert [bar.top for bar in view.tokens] == [pytest.approx(5 / 6), 1, 0]
    assert {line.name: line.usage.requests for line in view.by_key} == {"": 1, "laptop": 5}


TABLES = ("by_day", "by_model", "by_key")


def adds_up(record: Json) -> None:
    """Each table of a record of statistics sums to its total."""
    for table, (name, total) in product(TABLES, record["total"].items()):
        figures = [line[name] or 0 for line in record[table]]
        assert sum(figures) == pytest.approx(total or 0), (table, name)


def random_sums(seed: int) -> dict[tuple[str, str, str], Usage]:
    """Usage of three days, models and keys, where drafts cost time as often as they save it."""
    chance = Random(seed)
    names = product(("2026-03-12", "2026-03-13", "2026-03-14"), ("", "a", "b"), ("", "key", "x"))
    return {
        name: Usage(
            requests=chance.randrange(9),
            failed=chance.randrange(3),
            prompt=100,
            cached=chance.choice((0, 90)),
            measured_n=100 * (name[1] == "a"),
            measured_s=2.0 * (name[1] == "a"),
            draft_saved_s=chance.uniform(-30, 30),
        )
        for name in names
        if chance.random() < 0.7
    }


@pytest.mark.parametrize("seed", range(20))
def test_every_table_adds_up(seed: int) -> None:
    view = statistics_view(random_sums(seed), 3, TODAY)
    adds_up(statistics_record(view))
    shown = render("activity/statistics.html", "en", view=view)
    for line in (view.total, *view.by_day, *view.by_model, *view.by_key):
        assert formats.elapsed(line.usage.draft_saved_s) in shown
    total, bars = view.total.saved_s, view.saved
    assert sum(bar.value for bar in bars) == pytest.approx(total)
    assert all(0 <= bar.top <= bar.top + bar.height <= 1 + 1e-9 for bar in bars)


def test_a_loss_is_shown_as_one() -> None:
    lost = Usage(requests=1, predicted=9, draft_saved_s=-23.0)
    sums = {("2026-03-14", "m", ""): lost, ("2026-03-14", "m", "key"): Usage(draft_saved_s=39.3)}
    view = statistics_view(sums, 2, TODAY)
    shown = render("activity/statistics.html", "en", view=view)
    assert [line.usage.draft_saved_s for line in view.by_key] == [-23.0, 39.3]
    assert "−23.0\u202fs" in shown
    assert shown.count("16.3\u202fs") == 5, "card, model, day, and the highest day of the chart"


def test_what_is_not_measured_says_why() -> None:
    view = statistics_view({("2026-03-14", "m", ""): Usage(requests=1, cached=9)}, 2, TODAY)
    shown = render("activity/statistics.html", "en", view=view)
    assert view.total.prefix_saved_s is None
    assert shown.count(catalog("en")["ui.statistics.unmeasured"]) == 4
    nothing = statistics_view({("2026-03-14", "m", ""): Usage(requests=1)}, 2, TODAY)
    assert nothing.total.prefix_saved_s == 0


def test_statistics_count_what_activity_lists(tmp_path: Path) -> None:
    with administered(tmp_path) as server, server.browser() as browser:
        for body in (body_of(CHAT, 2), {"model": "no/such", "messages": SAY}, {"messages": []}):
            browser.post(CHAT, json=body)
        browser.post("/tokenize", json={"model": TARGET, "content": "a b"})
        listed = ended(browser)
        record = browser.get(f"{API}/statistics").json()
    assert (record["total"]["requests"], record["total"]["failed"]) == (4, 2)
    assert [answer["is_failure"] for answer in listed].count(True) == 2
    assert len(listed) == 4
    adds_up(record)


@pytest.mark.parametrize(("hours", "width_s"), [(1, 60), (24, 1440)])
def test_the_last_hours_are_bars_of_throughput_and_memory(hours: int, width_s: int) -> None:
    now = [1_764_000_000.0]
    minutes = Timeline(lambda: now[0], MINUTE_S, MAX_MINUTES)
    for number in range(60 * hours):
        minutes.add(30, used_bytes=700, throttled=number % 2 == 0)
        now[0] += 60
    minutes.add(used_bytes=900)
    view = history_view(minutes, hours, now[0])
    assert len(view.rate) == len(view.memory) == BARS
    assert view.rate[10].value == 30 / 60
    assert max(bar.value for bar in view.memory) == view.memory[-1].value == 900
    assert view.memory[10].height == pytest.approx(7 / 9)
    assert view.rate[0].day < view.rate[-1].day
    later = history_view(minutes, hours, now[0] + 2 * BARS * width_s)
    assert {bar.value for bar in (*later.rate, *later.memory)} == {0}
    assert {bar.value for bar in view.heat[1:-1]} == ({0.5} if width_s > 60 else {0, 1})
    assert later.heat == ()


def test_the_page_has_the_last_hours(server: Administered) -> None:
    with server.browser() as browser:
        browser.post(CHAT, json=body_of(CHAT, 2))
        page = browser.get(PAGE, params={"hours": 24})
        part = browser.get("/admin/parts/activity/history?hours=1")
        refused = browser.get(PAGE, params={"hours": 25})
    assert page.text.count('<rect class="bar"') >= 2 * BARS
    assert re.search(r"Memory for models.*?Highest: \d", page.text, re.DOTALL)
    assert (part.status_code, refused.status_code) == (200, 400)


def test_days_without_requests_are_empty() -> None:
    view = statistics_view({}, 7, TODAY)
    assert (view.tokens[0].day, view.tokens[-1].day) == ("2026-03-08", "2026-03-14")
    assert (view.by_day, view.tokens[0].value, view.total.cached_share) == ([], 0, None)


def test_they_survive_a_restart(tmp_path: Path) -> None:
    body = {"model": TARGET, "messages": HELLO, "max_tokens": 8}
    tokens = prompts = 0
    for _ in range(2):
        with administered(tmp_path, api_key="secret") as server, server.browser() as browser:
            headers = {"Authorization": "Bearer secret"}
            for _ in range(2):
                answer = browser.post("/v1/chat/completions", json=body, headers=headers).json()
                tokens += answer["usage"]["completion_tokens"]
                prompts += answer["usage"]["prompt_tokens"]
            record = browser.get(f"{API}/statistics", params={"days": 7}).json()
            page = browser.get(PAGE)
    assert (record["total"]["predicted"], record["total"]["prompt"]) == (tokens, prompts)
    assert record["total"]["requests"] == 4
    assert record["total"]["cached"] > 0
    assert record["total"]["prefix_saved_s"] > 0
    assert [(line["name"], line["requests"]) for line in record["by_key"]] == [("api_key", 4)]
    assert page.status_code == 200
    assert TARGET in page.text


@pytest.mark.parametrize("days", ["0", "401", "x"])
def test_an_invalid_number_of_days_is_refused(server: Administered, days: str) -> None:
    with server.browser() as browser:
        answer = browser.get(f"{API}/statistics", params={"days": days})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "days")
        assert browser.get(PAGE, params={"days": days}).status_code == 400


def test_the_first_token_after_a_tools_result_is_a_figure() -> None:
    times = ((1.0, True), (9.0, False), (3.0, True), (None, True))
    answers = [
        answer_view(
            Outcome(5.0, 200, 10.0, first_token_s=time, arrival=Arrival(0.0, after_tool=after_tool))
        )
        for time, after_tool in times
    ]
    assert EndedView(answers, frozenset()).after_tool_s == 2.0
    assert EndedView(answers[1:2], frozenset()).after_tool_s is None
