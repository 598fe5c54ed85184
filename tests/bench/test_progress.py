"""The progress of a measurement, on a terminal and in a log."""

from __future__ import annotations

import io
import sys

import pytest

from omlx.bench.console import Progress


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def work(progress: Progress, clock: Clock, units: int, seconds: float) -> None:
    for i in range(units):
        progress.start(f"unit {i}")
        clock.now += seconds
        progress.tick()


def test_a_log_has_a_line_every_half_minute_with_what_runs_and_the_time_left(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    with Progress(60, "pair", clock=clock) as progress:
        progress.start("what passes cost")
        clock.now += 300
        work(progress, clock, 10, seconds=12)
        progress.write("a result")
    assert capsys.readouterr().err.splitlines() == [
        "what passes cost: 0 of 60 pairs",
        "unit 0: 0 of 60 pairs",
        "unit 3: 3 of 60 pairs, 11 min left",
        "unit 6: 6 of 60 pairs, 11 min left",
        "unit 9: 9 of 60 pairs, 10 min left",
        "a result",
    ]


def test_the_time_left_ends_at_the_deadline(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with Progress(100, "pair", deadline=clock.now + 300, clock=clock) as progress:
        work(progress, clock, 4, seconds=120)
    assert [line.partition(", ")[2] for line in capsys.readouterr().err.splitlines()] == [
        "",
        "3 min left",
        "1 min left",
        "0 min left",
    ]


def test_a_terminal_has_a_bar_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with Progress(3, "pair") as progress:
        work(progress, Clock(), 3, seconds=60)
    shown = terminal.getvalue()
    assert "unit 2: 100%|" in shown
    assert "of 3 pairs" not in shown
