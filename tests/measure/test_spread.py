"""Figures by trial: medians, ranges, ratios within trials and their meaning, turns of sides."""

from __future__ import annotations

from math import isnan, nan

import pytest

from omlx.measure.spread import Gain, Series, Spread, geometric_mean, rotate, run_pair


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


def test_of_five_values_the_two_extremes_are_left_out() -> None:
    assert Spread.of([1.2, 1.5, 1.4]) == Spread(1.2, 1.4, 1.5)
    assert Spread.of([1.2, 0.2, 1.4, 1.3, 9.0]) == Spread(1.2, 1.3, 1.4)
    assert Spread.of([1.2, 0.2, 1.4, 1.3, 9.0]).gain is Gain.FASTER
    assert Spread.of([2.0]).gain is Gain.FASTER


@pytest.mark.parametrize(
    ("values", "gain"),
    [
        ([0.8, 0.9, 0.7], Gain.SLOWER),
        ([0.99, 1.0, 1.02], Gain.EVEN),
        ([0.8, 1.3, 1.6], Gain.UNCLEAR),
    ],
)
def test_a_range_that_covers_one_is_no_clear_gain(values: list[float], gain: Gain) -> None:
    assert Spread.of(values).gain is gain


def test_geometric_mean() -> None:
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)


def test_each_turn_begins_with_the_next_item() -> None:
    assert [rotate("abc", number) for number in (0, 1, 3)] == [
        ["a", "b", "c"],
        ["b", "c", "a"],
        ["a", "b", "c"],
    ]


@pytest.mark.parametrize("swap", [False, True])
def test_results_keep_their_sides_whatever_ran_first(swap: bool) -> None:
    calls: list[str] = []

    def side(name: str) -> str:
        calls.append(name)
        return name

    assert run_pair(lambda: side("ours"), lambda: side("theirs"), swap=swap) == ("ours", "theirs")
    assert calls == (["theirs", "ours"] if swap else ["ours", "theirs"])
