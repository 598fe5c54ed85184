"""Benchmarks on a real socket with a bundled pair: complete, compared, exported, stopped."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from omlx import __version__
from omlx.measure import benchmark as benchmarks
from omlx.models.pool.speculation import check_value
from omlx.settings.store import Store
from tests.admin.running import API, Administered, administered
from tests.server.running import DRAFT, TARGET

HERE = f"{API}/models/{TARGET}/benchmark"
TRIAL = f"{API}/models/{TARGET}/trial"
SMALL = {"longest": 1024}
PATIENCE_S = 120


@pytest.fixture(scope="module")
def drafting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Administered]:
    home = tmp_path_factory.mktemp("home")
    with administered(home, draft_model=DRAFT) as running:
        yield running


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rounds take as long as three tests."""
    monkeypatch.setattr(benchmarks, "ROUNDS", 1)
    monkeypatch.setattr(benchmarks, "ANSWER_TOKENS", 24)


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def wait(client: httpx.Client, **wanted: Any) -> dict[str, Any]:
    """Return the running report once it has these values; all of the record when none runs."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        record: dict[str, Any] = client.get(HERE).json()
        running = record["running"]
        if running is None and not wanted:
            return record
        if running and wanted and all(running[name] == value for name, value in wanted.items()):
            return dict(running)
        time.sleep(0.05)  # as the page does, which asks every second
    raise AssertionError(record)


def test_from_start_to_export(drafting: Administered) -> None:
    with drafting.browser() as client:
        assert code(client.get(f"{HERE}/export")) == (404, "benchmark.no_result")
        assert client.post(HERE, json=SMALL).status_code == 202
        assert code(client.post(HERE, json=SMALL)) == (409, "benchmark.running")
        assert code(client.post(TRIAL, json={"kinds": ["code"]})) == (409, "benchmark.running")
        unload = client.post(f"{API}/models/{TARGET}/unload")
        assert code(unload) == (409, "benchmark.unload")
        (run,) = wait(client)["runs"]
        assert (run["omlx"], run["draft"], run["left_out"]) == (__version__, DRAFT, [])
        assert "draft" in run["drafters"]
        assert [(row["tokens"], row["streams"]) for row in run["rows"]] == [(1024, 1), (1024, 4)]
        for row in run["rows"]:
            for mode in ("plain", "drafted"):
                rate = row[mode]
                assert 0 < rate["low"] <= rate["median"] <= rate["high"]
            assert row["memory_bytes"] > 0
        alone = run["rows"][0]
        assert alone["prefill"] == pytest.approx(1024 / alone["first_s"], rel=0.3)
        assert alone["acceptance"] is None or 0 <= alone["acceptance"] <= 1
        text = client.get(f"{HERE}/export", params={"format": "md"}).text
        assert text.count("\n| ") == 4
        assert f"| {alone['prefill']:.0f}" in text or f"| {alone['prefill']:.1f}" in text
        assert client.get(f"{HERE}/export").json() == run
        page = client.get("/admin/benchmark", params={"model": TARGET}).text
        assert page.count("<progress") == 5
        assert client.get(f"/admin/parts/benchmark/{TARGET}").status_code == 200


def test_requests_of_clients_go_first_and_a_stopped_run_is_not_stored(
    drafting: Administered,
) -> None:
    body = drafting.endless()
    with drafting.browser() as client, drafting.browser(logged_in=False) as user:
        before = len(client.get(HERE).json()["runs"])
        assert client.post(HERE, json=SMALL).status_code == 202
        wait(client, state="running")
        with user.stream("POST", "/v1/chat/completions", json=body) as stream:
            lines = stream.iter_lines()
            next(line for line in lines if "content" in line)
            wait(client, state="paused")
            next(line for line in lines if "content" in line)  # not interrupted
        assert client.post(f"{HERE}/stop").json()["state"] == "cancelled"
        assert code(client.post(f"{HERE}/stop")) == (409, "benchmark.not_running")
        record = client.get(HERE).json()
        assert (record["running"], record["ended"]["state"]) == (None, "cancelled")
        assert len(record["runs"]) == before


@pytest.mark.slow
def test_what_does_not_fit_is_left_out_with_its_reason(tmp_path_factory: Any) -> None:
    home = tmp_path_factory.mktemp("home")
    Store(home, check_value).patch({"speculation": "off"}, TARGET)
    with administered(home, max_concurrent_requests=2) as server, server.browser() as client:
        client.post(HERE, json={"longest": 131072})
        (run,) = wait(client)["runs"]
        assert [(row["tokens"], row["streams"]) for row in run["rows"]] == [(1024, 1), (4072, 1)]
        assert (run["drafters"], run["rows"][0]["drafted"]) == ([], None)
        reasons = {(left["tokens"], left["streams"]): left["reason"] for left in run["left_out"]}
        assert {place: reason["code"] for place, reason in reasons.items()} == {
            (1024, 4): "benchmark.rows",
            (4072, 4): "benchmark.rows",
        }
        page = client.get("/admin/benchmark", params={"model": TARGET}).text
        lengths = page.partition('id="bench-longest"')[2].partition("</select>")[0]
        assert re.findall(r'value="(\d+)">([^<]+)<', lengths) == [
            ("4096", "4\u202f072 tokens"),
            ("1024", "1k tokens"),
        ]


@pytest.mark.parametrize("longest", [0, 1 << 20, "4k", 1.5])
def test_a_length_of_another_kind_is_refused(drafting: Administered, longest: Any) -> None:
    with drafting.browser() as client:
        answer = client.post(HERE, json={"longest": longest})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "longest")


def test_it_needs_a_model(drafting: Administered) -> None:
    with drafting.browser() as client:
        assert client.post(f"{API}/models/no/such/benchmark").status_code == 404
        assert client.get("/admin/benchmark", params={"model": "no/such"}).status_code == 404
