"""Live figures: views, and the endpoint on a real socket."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from omlx.admin.models.model_snapshot import ModelSnapshot, suggested
from omlx.admin.overview import (
    ENDED_SHOWN_S,
    Live,
    StepView,
    Welcome,
    current_rate,
    is_past,
    minutes,
    step_views,
    welcome,
)
from omlx.admin.views import MIN_PROPOSED_TOKENS, answer_view, request_views
from omlx.errors import Reason
from omlx.models.catalog.registry import ModelEntry
from omlx.models.pool.footprint import MemoryParts
from omlx.models.pool.served import ModelStatus, State
from omlx.records import MAX_STEP_DEVIATION, MIN_SPEEDUP_TOKENS, DrafterStats, RequestStats
from omlx.server.http.guard import Arrival
from omlx.server.request.activity import Activity, Outcome, Running
from omlx.telemetry.metrics import Gauges, Metrics
from omlx.telemetry.usage import STEP_S, Span
from tests.admin.running import API, Administered, administered
from tests.server.running import DRAFT, PATIENCE_S, TARGET

CHAT = "/v1/chat/completions"
STATS = RequestStats(
    40, 10, 21, 0, 100, 2000, 1, {}, Reason("spec.off.does_not_pay", {"speedup": 0.9}), speedup=0.97
)


@pytest.fixture(scope="module")
def drafting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Administered]:
    with administered(tmp_path_factory.mktemp("home"), draft_model=DRAFT) as running:
        yield running


def ask(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    body = {
        "model": TARGET,
        "messages": [{"role": "user", "content": "Say hello."}],
        "max_tokens": 24,
        **fields,
    }
    answered = client.post(CHAT, json=body)
    assert answered.status_code == 200
    completion: dict[str, Any] = answered.json()
    return completion


def test_the_engines_queue_separates_waiting_from_reading() -> None:
    running = [
        Running(
            "a",
            "m",
            10,
            Arrival(0.0),
            read=10,
            tokens=5,
            drafted=2,
            first_token_at=1.0,
            last_token_at=2.0,
            opening=1,
        ),
        Running("b", "m", 10, Arrival(0.0), read=4),
        Running("c", "m", 10, Arrival(0.0)),
        Running("d", "m", 10, Arrival(0.0)),
        Running("e", "other", 10, Arrival(0.0)),
    ]
    seen = request_views(running, {"m": 1})
    assert [request.phase for request in seen] == [
        "writing",
        "reading",
        "reading",
        "waiting",
        "reading",
    ]
    assert (seen[0].rate, seen[0].drafted, seen[1].rate) == (4.0, 2, None)


def test_steps_are_rates_and_minutes_their_means() -> None:
    seen = step_views([Span(60, 20, 10), Span(118, 100, 0), Span(120, 6, 6)])
    assert seen == [StepView(60, 10.0, 5.0), StepView(118, 50.0, 0.0), StepView(120, 3.0, 3.0)]
    assert minutes(seen) == [
        StepView(120, pytest.approx(0.1), pytest.approx(0.1)),
        StepView(60, pytest.approx(2.0), pytest.approx(1 / 6)),
    ]


def test_the_current_rate_is_that_of_the_last_complete_step() -> None:
    activity = Activity(Metrics(lambda: Gauges(True)), wall=lambda: 1000.5)
    activity.timeline.add(30, 3)
    assert current_rate(activity, 1000.5) == 0.0
    assert current_rate(activity, 1000.5 + STEP_S) == 30 / STEP_S
    assert current_rate(activity, 1000.5 + 2 * STEP_S) == 0.0


def outcome(stats: RequestStats | None = STATS, status: int = 200, **more: Any) -> Outcome:
    return Outcome(5.0, status, 2.5, "m", prompt=40, tokens=21, stats=stats, **more)


def test_an_answer_without_drafts_has_no_acceptance_and_no_speedup() -> None:
    plain = answer_view(outcome())
    assert (plain.rate, plain.acceptance, plain.speedup) == (10.0, None, None)
    assert (plain.outcome, plain.params) == ("spec.off.does_not_pay", {"speedup": 0.9})
    drafters = {"n": DrafterStats(proposed=40, accepted=30, rounds=9)}
    drafted = replace(STATS, predicted_n=MIN_SPEEDUP_TOKENS, drafters=drafters)
    seen = answer_view(outcome(drafted))
    assert (seen.acceptance, seen.speedup) == (0.75, 0.97)
    short = answer_view(outcome(replace(drafted, predicted_n=MIN_SPEEDUP_TOKENS - 1)))
    uneven = answer_view(outcome(replace(drafted, step_deviation=MAX_STEP_DEVIATION + 0.01)))
    assert (short.speedup, uneven.speedup, uneven.acceptance) == (None, None, 0.75)
    empty = replace(STATS, predicted_n=0, predicted_ms=0)
    assert answer_view(outcome(empty)).rate is None


def test_a_few_tokens_make_no_rate_and_no_acceptance() -> None:
    few = replace(
        STATS,
        predicted_n=4,
        predicted_ms=0.12,
        drafters={"n": DrafterStats(proposed=3, accepted=3, rounds=1)},
    )
    seen = answer_view(outcome(few))
    assert (seen.rate, seen.acceptance, seen.speedup) == (None, None, None)


def test_a_cancelled_request_is_not_shown_as_speculation() -> None:
    seen = answer_view(outcome(status=499))
    assert (seen.state, seen.outcome, seen.tokens) == ("cancelled", "ui.answers.cancelled", 21)


def test_an_error_is_shown_with_its_status_and_reason() -> None:
    error = Reason("engine.prompt_too_long", {"tokens": 20011, "limit": 4096})
    seen = answer_view(outcome(None, 400, error=error))
    assert (seen.state, seen.status, seen.outcome, seen.params) == (
        "failed",
        400,
        error.code,
        error.params,
    )


def test_answers_and_totals_match_the_responses(drafting: Administered) -> None:
    with drafting.browser() as client:
        before = client.get(f"{API}/live").json()
        responses = [
            ask(client, speculation="draft", num_draft_tokens=3),
            ask(client, speculation="off"),
        ]
        after = client.get(f"{API}/live", params={"since": before["now"]}).json()
        assert [shown["tokens"] for shown in after["answers"]] == [
            response["timings"]["predicted_n"] for response in responses
        ]
        first, second = after["answers"]
        timings = responses[0]["timings"]
        assert timings["draft_n"] >= MIN_PROPOSED_TOKENS
        assert first["acceptance"] == timings["draft_n_accepted"] / timings["draft_n"]
        assert (second["outcome"], second["acceptance"]) == ("spec.off.requested", None)
        grown = {name: after[name] - before[name] for name in ("prompt", "cached")}
        assert grown["prompt"] == sum(response["usage"]["prompt_tokens"] for response in responses)
        cached = sum(
            response["usage"]["prompt_tokens_details"]["cached_tokens"] for response in responses
        )
        assert grown["cached"] == cached
        generated = STEP_S * sum(step["rate"] for step in client.get(f"{API}/live").json()["steps"])
        assert generated >= sum(response["timings"]["predicted_n"] for response in responses)
        assert after["requests"] == []
        assert 0 < after["used_bytes"] < after["limit_bytes"]
        later = client.get(f"{API}/live", params={"since": after["now"]}).json()
        assert later["answers"] == []


def test_a_request_is_seen_while_it_runs(drafting: Administered) -> None:
    with drafting.browser() as client, drafting.browser() as other:
        ask(client)
        body = drafting.endless()
        with client.stream("POST", CHAT, json=body) as stream:
            lines = stream.iter_lines()
            while not re.search(r'"content": ?"[^"]', next(lines)):
                pass
            seen = other.get(f"{API}/live").json()
            (request,) = seen["requests"]
            assert (request["model"], request["phase"], seen["active"]) == (TARGET, "writing", 1)
            assert 0 < request["tokens"] < 3000
            assert request["read"] == request["prompt"] > 0
        drafting.running.engine.wait_until_ended("")
        assert other.get(f"{API}/live").json()["requests"] == []


def test_charts_get_the_moment_of_the_figures(drafting: Administered) -> None:
    with drafting.browser() as client:
        before = client.get(f"{API}/live").json()
        ask(client)
        after = client.get(f"{API}/live", params={"at": before["now"]}).json()
        assert after["now"] == before["now"]
        newest = max((answer["at"] for answer in after["answers"]), default=0)
        assert newest <= before["now"]
        assert all(step["at"] <= before["now"] for step in after["steps"])
        fresh = {"since": after["now"]}
        assert len(client.get(f"{API}/live", params=fresh).json()["answers"]) == 1


@pytest.mark.parametrize("since", ["-1", "yesterday", "nan"])
def test_an_invalid_time_is_refused(drafting: Administered, since: str) -> None:
    with drafting.browser() as client:
        answer = client.get(f"{API}/live", params={"since": since})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "since")


QUESTION, TEXT = "/v1/chat/completions", "/v1/completions"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
KEY = "secret-key"
SAY = [{"role": "user", "content": "Name three rivers."}]
LONG = "word " * 5000
Json = dict[str, Any]

REFUSALS: dict[str, tuple[str, Json, int, str]] = {
    "unknown model": (QUESTION, {"model": "no/such", "messages": SAY}, 404, "model.not_found"),
    "no messages": (QUESTION, {"model": TARGET, "messages": []}, 400, "request.empty"),
    "bad value": (
        QUESTION,
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
    "chat": (QUESTION, {"messages": [{"role": "user", "content": LONG}]}),
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
    assert listed["model"] == body.get("model")
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
    assert post(server, QUESTION, {"model": TARGET, "messages": SAY}, "wrong").status_code == 401
    url = server.running.url
    assert httpx.get(f"{url}/v1/models").status_code == 401
    assert httpx.get(f"{url}/favicon.ico", headers={"x-api-key": KEY}).status_code == 404
    with server.browser(logged_in=False) as client:
        assert client.get(f"{API}/settings").status_code == 401
    listed = ended(server, since, 2)
    assert {(row["path"], row["outcome"]) for row in listed} == {
        (QUESTION, "auth.key"),
        ("/v1/models", "auth.missing"),
    }


def test_an_answer_is_listed_with_its_times(server: Administered, since: float) -> None:
    body = {"model": TARGET, "messages": SAY, "max_tokens": 5}
    usage = post(server, QUESTION, body).json()["usage"]
    (listed,) = ended(server, since)
    assert (listed["status"], listed["prompt"]) == (200, usage["prompt_tokens"])
    assert 0 < listed["first_token_s"] <= listed["seconds"]


@pytest.mark.parametrize(
    ("path", "prompt"), [(QUESTION, {"messages": SAY}), (TEXT, {"prompt": "One two"})]
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


SMALL, LARGE, HUGE = (
    ModelEntry(f"org/{n}", Path(str(n)), "home", size_bytes=n) for n in (1, 50, 900)
)


def live(prompt: int = 0) -> Live:
    return Live(0.0, 0.0, 0, 0, 0, MemoryParts(), 100, prompt, 0, (), (), (), ())


def test_the_largest_model_that_fits_is_suggested() -> None:
    assert suggested([SMALL, LARGE, HUGE], 100) == "org/50"
    assert suggested([HUGE], 100) == "org/900"
    assert suggested([], 100) is None


@pytest.mark.parametrize(
    ("state", "prompt", "shown"),
    [
        (None, 0, Welcome("org/1")),
        (State.LOADING, 0, Welcome("org/1", loading=True)),
        (State.READY, 0, None),
        (None, 5, None),
    ],
)
def test_it_welcomes_until_a_model_has_been_in_memory(
    state: State | None, prompt: int, shown: Welcome | None
) -> None:
    resident = [] if state is None else [ModelSnapshot(SMALL, ModelStatus(state))]
    assert welcome(live(prompt), resident, "org/1") == shown


def test_the_end_of_a_trial_is_shown_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("omlx.admin.overview.time.monotonic", lambda: now)
    assert not is_past(None)
    assert not is_past(now - ENDED_SHOWN_S)
    assert is_past(now - ENDED_SHOWN_S - 1)
