"""Parts of the page: in order, within their time, and a failure stays where it happened."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.bench.console import Progress
from lab.bench.kernels import Expired, Part, Row, run_parts
from tests.clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


def part(clock: Clock, title: str, seconds: float, takes: float, rows: int = 3) -> Part:
    """A part whose rows take so many seconds each."""

    def measure(progress: Progress, expired: Expired) -> Iterator[Row]:
        for row in range(rows):
            clock.now += takes
            progress.tick()
            yield title, str(row)
            if expired():
                return

    return Part(title, ("part", "row"), seconds, rows, measure)


def test_each_part_is_a_table_in_order(clock: Clock) -> None:
    parts = [part(clock, "first", 10, 1, 2), part(clock, "second", 10, 1, 1)]
    assert list(run_parts(parts, 100, clock)) == [
        "first\npart   row\n─────  ───\nfirst  0\nfirst  1\n",
        "second\npart    row\n──────  ───\nsecond  0\n",
    ]


def test_a_part_ends_with_the_row_in_which_its_time_is_over(clock: Clock) -> None:
    slow, next_one = run_parts([part(clock, "a", 5, 4), part(clock, "b", 5, 1)], 100, clock)
    assert slow.endswith("a     1\nThe time of this part was over: rows may be missing.\n")
    assert next_one.endswith("b     2\n")


def test_what_comes_after_the_budget_is_left_out(clock: Clock) -> None:
    parts = [part(clock, "a", 50, 4), part(clock, "b", 50, 1)]
    first, second = run_parts(parts, 7, clock)
    assert "a     1" in first
    assert "a     2" not in first
    assert second == "b\nNo time was left.\n"


def test_an_error_is_reported_with_the_rows_before_it(clock: Clock) -> None:
    def fail(progress: Progress, expired: Expired) -> Iterator[Row]:
        yield "a", "0"
        raise RuntimeError("[METAL] Command buffer execution failed: Insufficient Memory")

    parts = [Part("bad", ("part", "row"), 5, 1, fail), part(clock, "good", 5, 1, 1)]
    bad, good = run_parts(parts, 100, clock)
    assert bad.splitlines()[-2:] == [
        "a     0",
        "ERROR RuntimeError: [METAL] Command buffer execution failed: Insufficient Memory",
    ]
    assert "good  0" in good


def test_progress_counts_what_was_left_out(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = [part(clock, "a", 1, 40), part(clock, "b", 100, 1)]
    list(run_parts(parts, 1000, clock))
    assert [line.partition(",")[0] for line in capsys.readouterr().err.splitlines()] == [
        "a: 0 of 6 steps",
        "b: 3 of 6 steps",
    ]
