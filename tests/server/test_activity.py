"""Requests in progress and finished ones, from events alone."""

from __future__ import annotations

import pytest

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
from omlx.server.request.activity import Activity, Running
from omlx.telemetry.metrics import Gauges, Metrics

ASK = Request("a", tuple(range(40)))
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
    activity.submitted("m", ASK)
    assert activity.running == (Running("a", "m", prompt=40, arrival=Arrival(100.0)),)
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
    activity.submitted("m", ASK, Arrival(98.0))
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
    activity.submitted("m", ASK)
    activity.observe(Finished("a", FinishReason.CANCELLED, STATS))
    (outcome,) = activity.outcomes()
    assert (outcome.status, outcome.stats) == (499, STATS)


def test_refusals_are_bounded_and_push_out_no_answer(activity: Activity, clock: Clock) -> None:
    activity.submitted("m", ASK)
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
        activity.submitted("m", ASK)
        activity.observe(Finished("a", FinishReason.STOP, STATS))
        clock.now += 1
    assert [outcome.at for outcome in activity.outcomes()] == [102.0, 103.0, 104.0, 105.0]
    assert [outcome.at for outcome in activity.outcomes(104.0)] == [104.0, 105.0]
