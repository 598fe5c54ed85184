"""Metrics of a real server, and the record of requests that run and of the newest answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as families

from omlx.engine.types import (
    Failed,
    Finished,
    FinishReason,
    PrefillProgress,
    Request,
    TokensCommitted,
)
from omlx.errors import NotFound, Overloaded, Reason
from omlx.records import RequestStats
from omlx.server.http.guard import Arrival, Caller
from omlx.server.request import activity as record
from omlx.server.request.activity import Activity
from omlx.settings.schema import Settings
from omlx.telemetry.metrics import Gauges, Metrics
from tests.server.dialects import user
from tests.server.running import DRAFT, TARGET, Running, omlx

CHAT = "/v1/chat/completions"
ASK: dict[str, Any] = {"model": TARGET, "messages": user("Say hello."), "max_tokens": 12}


@pytest.fixture(scope="module")
def own() -> Iterator[Running]:
    with omlx(Settings(draft_model=DRAFT)) as running:
        yield running


def samples(http: httpx.Client) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    answer = http.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    values = {}
    for family in families(answer.text):
        for sample in family.samples:
            values[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return values


def value(
    found: dict[tuple[str, tuple[tuple[str, str], ...]], float], name: str, **labels: str
) -> float:
    return found.get((name, tuple(sorted(labels.items()))), 0.0)


def test_counts_are_those_of_the_answers(own: Running) -> None:
    http = own.http
    before = samples(http)
    answers = [
        http.post(CHAT, json={**ASK, **more}).json()
        for more in (
            {"speculation": "draft", "num_draft_tokens": 3},
            {"n": 2, "speculation": "off"},
        )
    ]
    assert http.post(CHAT, json={**ASK, "max_tokens": 0}).status_code == 400
    after = samples(http)

    def grown(name: str, **labels: str) -> float:
        return value(after, name, **labels) - value(before, name, **labels)

    drafted = answers[0]["timings"]["drafters"][DRAFT]
    by_drafter = {"model": TARGET, "drafter": DRAFT}
    assert grown("omlx_draft_proposed_tokens_total", **by_drafter) == drafted["proposed"] > 0
    assert grown("omlx_draft_accepted_tokens_total", **by_drafter) == drafted["accepted"]
    assert grown("omlx_draft_rounds_total", **by_drafter) == drafted["rounds"]
    for i, count in enumerate(drafted["accepted_at"]):
        assert grown("omlx_draft_accepted_at_total", **by_drafter, position=str(i + 1)) == count
    assert grown("omlx_draft_gates_total", **by_drafter, state="on", code="") == 1
    for span, count in drafted["spans"].items():
        assert grown("omlx_draft_spans_total", **by_drafter, **{"class": span}) == count
    for repair, count in drafted["repairs"].items():
        assert grown("omlx_draft_repairs_total", **by_drafter, kind=repair) == count
    assert grown("omlx_draft_seconds_total", **by_drafter) == pytest.approx(
        drafted["draft_ms"] / 1000, abs=1e-5
    )
    said = sum(answer["usage"]["completion_tokens"] for answer in answers)
    assert grown("omlx_predicted_tokens_total", model=TARGET) == said
    assert (
        grown("omlx_prompt_tokens_total", model=TARGET) == 3 * answers[0]["usage"]["prompt_tokens"]
    )
    assert grown("omlx_speculation_outcomes_total", model=TARGET, code="spec.on") == 1
    assert grown("omlx_speculation_outcomes_total", model=TARGET, code="spec.off.requested") == 2
    for status, count in (("200", 2), ("400", 1)):
        assert grown("omlx_http_requests_total", method="POST", route=CHAT, status=status) == count
    for part in ("queue", "prefill", "decode"):
        assert grown(f"omlx_{part}_seconds_count", model=TARGET) == 3
        assert grown(f"omlx_{part}_seconds_sum", model=TARGET) >= 0


def test_each_of_them_is_documented(own: Running) -> None:
    http = own.http
    text = (Path(__file__).resolve().parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
    names = {family.name for family in families(http.get("/metrics").text)}
    assert {
        name for name in names if f"`{name}`" not in text and f"`{name}_total`" not in text
    } == set()


def test_rows_and_the_engine_are_gauges(own: Running) -> None:
    running, http = own, own.http
    assert http.post(CHAT, json={**ASK, "max_tokens": 1}).status_code == 200
    body = {**ASK, "stream": True, "max_tokens": 3000, "logit_bias": running.endless()}
    with http.stream("POST", CHAT, json=body) as answer:
        lines = answer.iter_lines()
        for _ in range(5):
            next(lines)
        busy = samples(http)
    assert value(busy, "omlx_rows", model=TARGET, state="decoding") == 1
    assert value(busy, "omlx_engine_up") == 1


def test_a_client_that_asks_for_open_metrics_gets_them(own: Running) -> None:
    http = own.http
    answer = http.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert "omlx_engine_up" in {family.name for family in open_metrics(answer.text)}


def test_unknown_paths_share_one_label(own: Running) -> None:
    http = own.http
    before = samples(http)
    for path in ("/v1/nothing", "/secret/swordfish"):
        assert http.get(path).status_code == 404
    assert http.request("BREW", CHAT).status_code == 405
    after = samples(http)
    for status, count in (("404", 2), ("405", 1)):
        labels = {"method": "other", "route": "other", "status": status}
        name = "omlx_http_requests_total"
        assert value(after, name, **labels) - value(before, name, **labels) == count
    assert "swordfish" not in str(after)


def test_a_dead_engine_is_down_and_can_still_be_scraped() -> None:
    with omlx() as running:
        http = running.http
        assert value(samples(http), "omlx_engine_up") == 1
        running.engine.stop()
        assert value(samples(http), "omlx_engine_up") == 0


def test_the_key_guards_them() -> None:
    with omlx(Settings(api_key="key")) as running:
        http = running.http
        assert http.get("/metrics").status_code == 401
        assert http.get("/metrics", headers={"Authorization": "Bearer key"}).status_code == 200


REQUEST = Request("a", tuple(range(40)))
STATS = RequestStats(40, 16, 6, 0, 100, 500, 1, {}, Reason("spec.on"))


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def activity(clock: Clock) -> Activity:
    return Activity(Metrics(lambda: Gauges(True)), clock=clock, wall=clock, max_outcomes=4)


def committed(*drafted: bool) -> TokensCommitted:
    return TokensCommitted("a", tuple(range(len(drafted))), drafted)


def test_a_request_is_followed_from_its_prompt_to_its_end(activity: Activity, clock: Clock) -> None:
    activity.submitted("m", REQUEST)
    assert activity.running == (record.Running("a", "m", prompt=40, arrival=Arrival(100.0)),)
    assert not activity.running[0].started
    activity.observe(PrefillProgress("a", 32, 40))
    assert (activity.running[0].started, activity.running[0].read) == (True, 32)
    activity.observe(committed(False))
    assert (activity.running[0].read, activity.running[0].rate) == (40, None)
    clock.now += 0.5
    activity.observe(committed(True, True, False, True, False))
    (now,) = activity.running
    assert (now.tokens, now.drafted, now.rate) == (6, 3, 10.0)
    activity.observe(Finished("a", FinishReason.STOP, STATS))
    assert activity.running == ()
    (outcome,) = activity.outcomes()
    assert (outcome.model, outcome.at, outcome.stats) == ("m", 100.5, STATS)
    assert (outcome.status, outcome.seconds, outcome.first_token_s) == (200, 0.5, 0.0)
    assert (outcome.prompt, outcome.tokens) == (40, 6)
    assert (activity.totals.prompt, activity.totals.cached, activity.totals.predicted) == (
        40,
        16,
        6,
    )
    assert [(step.tokens, step.drafted) for step in activity.timeline.since(0)] == [(6, 3)]


def test_a_failed_request_is_listed_with_its_error_and_not_counted(
    activity: Activity, clock: Clock
) -> None:
    activity.submitted("m", REQUEST, Arrival(98.0))
    activity.observe(committed(False, False))
    clock.now += 1
    activity.observe(Failed("a", Overloaded("engine.queue_full", waiting=1, limit=1)))
    activity.observe(Failed("b", Overloaded("engine.queue_full", waiting=1, limit=1)))
    assert (activity.running, activity.totals.prompt) == ((), 0)
    (outcome,) = activity.outcomes()
    assert (outcome.status, outcome.error) == (
        503,
        Reason("engine.queue_full", {"waiting": 1, "limit": 1}),
    )
    assert (outcome.prompt, outcome.tokens, outcome.stats) == (40, 2, None)
    assert (outcome.seconds, outcome.first_token_s) == (3.0, 2.0)


def test_a_cancelled_request_is_listed_as_one(activity: Activity) -> None:
    activity.submitted("m", REQUEST)
    activity.observe(Finished("a", FinishReason.CANCELLED, STATS))
    (outcome,) = activity.outcomes()
    assert (outcome.status, outcome.stats) == (499, STATS)


def test_refusals_are_bounded_and_push_out_no_answer(activity: Activity, clock: Clock) -> None:
    activity.submitted("m", REQUEST)
    activity.observe(Finished("a", FinishReason.STOP, STATS))
    for _ in range(9):
        clock.now += 1
        error = NotFound("model.not_found", model="x" * 100_000)
        activity.answered("/v1/chat/completions", Caller("curl/8"), 404, 0.25, error)
    first, *refused = activity.outcomes()
    assert (first.model, len(refused)) == ("m", 4)
    newest = refused[-1]
    assert (newest.status, newest.path, newest.seconds) == (404, "/v1/chat/completions", 0.25)
    assert newest.error == Reason("model.not_found", {"model": "x" * 200})
    assert (newest.model, newest.at) == ("x" * 200, 109.0)


def test_the_newest_answers_are_kept_and_asked_for_by_time(
    activity: Activity, clock: Clock
) -> None:
    for _ in range(6):
        activity.submitted("m", REQUEST)
        activity.observe(Finished("a", FinishReason.STOP, STATS))
        clock.now += 1
    assert [outcome.at for outcome in activity.outcomes()] == [102.0, 103.0, 104.0, 105.0]
    assert [outcome.at for outcome in activity.outcomes(104.0)] == [104.0, 105.0]
