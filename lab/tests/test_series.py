"""Figures by trial: medians, ranges, ratios within trials; sides run in pairs."""

from __future__ import annotations

from math import isnan, nan

import pytest

from lab.bench.series import Series, run_pair


def test_trials_without_a_figure_count_for_nothing() -> None:
    some = Series((nan, 2.0, 4.0, nan))
    assert (some.least, some.median, some.most) == (2.0, 3.0, 4.0)
    assert some.quartiles == (2.5, 3.5)
    nothing = Series((nan,))
    assert isnan(nothing.least)
    assert isnan(nothing.median)
    assert isnan(nothing.quartiles[0])


@pytest.mark.parametrize(
    ("count", "outside"), [(1, 0), (5, 0), (6, 0), (8, 0), (9, 1), (20, 5), (100, 39), (2000, 955)]
)
def test_the_interval_of_a_median_leaves_out_as_many_on_each_side(count: int, outside: int) -> None:
    values = tuple(float(value) for value in reversed(range(count)))
    assert Series((*values, nan)).interval == (outside, count - 1 - outside)


def test_nothing_has_no_interval() -> None:
    assert all(map(isnan, Series((nan,)).interval))


def test_ratios_are_taken_within_trials_that_both_finished() -> None:
    ratios = Series((10.0, 30.0, nan, 5.0)).over(Series((5.0, 10.0, 20.0)))
    assert ratios.values[:2] == (2.0, 3.0)
    assert isnan(ratios.values[2])
    assert len(ratios.values) == 3
    assert isnan(Series((1.0,)).over(Series((0.0,))).median)


@pytest.mark.parametrize("swap", [False, True])
def test_results_keep_their_sides_whatever_ran_first(swap: bool) -> None:
    calls: list[str] = []

    def side(name: str) -> str:
        calls.append(name)
        return name

    assert run_pair(lambda: side("ours"), lambda: side("theirs"), swap=swap) == ("ours", "theirs")
    assert calls == (["theirs", "ours"] if swap else ["ours", "theirs"])
