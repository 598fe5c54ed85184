"""Statistics: the view, and the page after a restart of the server."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from omlx.admin.activity import statistics_view
from omlx.telemetry.usage import FAILURE, Usage
from tests.admin.running import API, administered
from tests.server.running import TARGET

TODAY = date(2026, 3, 14)
SAY = [{"role": "user", "content": "Count to three, then to five, and say why. " * 12}]
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
    assert [bar.share for bar in view.tokens] == [pytest.approx(1 / 6), 0, 1]
    assert {line.name: line.usage.requests for line in view.by_key} == {"": 1, "laptop": 5}


def test_days_without_requests_are_empty() -> None:
    view = statistics_view({}, 7, TODAY)
    assert (view.first_day, view.last_day) == ("2026-03-08", "2026-03-14")
    assert (view.by_day, view.most_tokens, view.total.cached_share) == ([], 0, None)


def test_they_survive_a_restart(tmp_path: Path) -> None:
    body = {"model": TARGET, "messages": SAY, "max_tokens": 8}
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
def test_an_invalid_number_of_days_is_refused(tmp_path: Path, days: str) -> None:
    with administered(tmp_path, default=None) as server, server.browser() as browser:
        answer = browser.get(f"{API}/statistics", params={"days": days})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "days")
        assert browser.get(PAGE, params={"days": days}).status_code == 400
