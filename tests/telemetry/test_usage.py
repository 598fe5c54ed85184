"""Usage is summed by day, model and key, and survives the process; the file is bounded."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from datetime import datetime
from pathlib import Path

import pytest

from omlx.errors import Reason
from omlx.records import DrafterStats, RequestStats
from omlx.storage import FILE
from omlx.telemetry import usage
from omlx.telemetry.usage import FAILURE, KEPT_DAYS, Usage, UsageHistory
from tests.clock import Clock

ONE = Usage(requests=1, prompt=100, cached=40, predicted=10, accepted=4, draft_saved_s=0.5)
NOON = datetime(2026, 3, 14, 12).timestamp()
DAY_S = 86_400


def stats(prompt: int, cached: int, speedup: float | None, proposed: int) -> RequestStats:
    drafters = {"n": DrafterStats(proposed=proposed, accepted=proposed // 2, rounds=1)}
    return RequestStats(
        prompt, cached, 60, 0, 3000, 2000, 1, drafters, Reason("spec.on"), speedup=speedup
    )


def test_what_a_request_used_and_saved() -> None:
    usage = Usage.of(stats(300, 100, 1.5, 40))
    assert (usage.measured_n, usage.measured_s, usage.draft_saved_s) == (200, 3.0, 1.0)
    assert (usage.requests, usage.prompt, usage.cached, usage.accepted) == (1, 300, 100, 20)
    mostly_cached, short = Usage.of(stats(300, 200, 0.5, 8)), Usage.of(stats(60, 0, None, 8))
    assert (mostly_cached.measured_n, mostly_cached.draft_saved_s) == (0, -1.0)
    assert (short.measured_n, short.draft_saved_s) == (0, 0.0)
    assert Usage.of(stats(60, 0, 1.02, 0)).draft_saved_s == 0.0


def test_no_step_with_drafts_is_shorter_than_a_plain_one() -> None:
    """20 of 60 tokens were accepted: 40 steps took the time of 60 plain ones at least."""
    assert Usage.of(stats(300, 0, 1.5, 40)).draft_saved_s == 1.0
    assert Usage.of(stats(300, 0, 1.67, 40)).draft_saved_s == 0.0


def test_sums_survive_the_process_and_add_up_over_two(tmp_path: Path) -> None:
    home, clock = tmp_path / "home", Clock(NOON)
    first, second = UsageHistory(home, clock), UsageHistory(home, clock)
    for history in (first, second):
        history.add("m", "", ONE)
        history.flush()
    first.add("m", "laptop", FAILURE)
    clock.now += DAY_S
    first.add("m", "", ONE)
    expected = {
        ("2026-03-14", "m", ""): ONE + ONE,
        ("2026-03-14", "m", "laptop"): FAILURE,
        ("2026-03-15", "m", ""): ONE,
    }
    assert first.sums(2) == expected
    assert UsageHistory(home, clock).sums(2) == expected
    assert list(UsageHistory(home, clock).sums(1)) == [("2026-03-15", "m", "")]


def test_without_a_file_they_are_kept_in_memory() -> None:
    history = UsageHistory(None, Clock(NOON))
    history.add("m", "", ONE)
    history.flush()
    assert history.sums(1) == {("2026-03-14", "m", ""): ONE}


def test_what_cannot_be_written_is_kept_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / FILE
    path.mkdir()
    history = UsageHistory(tmp_path, Clock(NOON))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            history.add("m", "", ONE)
            history.flush()
    assert [record.getMessage() for record in caplog.records] == ["statistics not stored"]
    path.rmdir()
    assert history.sums(1) == {("2026-03-14", "m", ""): ONE + ONE + ONE}


def test_a_file_of_another_program_is_never_changed(tmp_path: Path) -> None:
    path = tmp_path / FILE
    with closing(sqlite3.connect(path)) as table:
        table.execute("create table usage (day text)")
    before = path.read_bytes()
    history = UsageHistory(tmp_path, Clock(NOON))
    history.add("m", "", ONE)
    assert history.sums(1) == {("2026-03-14", "m", ""): ONE}
    assert path.read_bytes() == before


def test_old_days_are_deleted_and_rows_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, clock = tmp_path, Clock(NOON)
    history = UsageHistory(home, clock)
    history.add("old", "", ONE)
    history.flush()
    clock.now += (KEPT_DAYS + 1) * DAY_S
    monkeypatch.setattr(usage, "MAX_ROWS", 3)
    for day in range(5):
        clock.now += DAY_S
        history.add(f"m{day}", "", ONE)
        history.flush()
    assert [model for _, model, _ in history.sums(KEPT_DAYS * 2)] == ["m2", "m3", "m4"]
