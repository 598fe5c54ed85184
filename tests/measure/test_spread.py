"""Figures of rounds: ranges, the meaning of ratios, turns of sides."""

from __future__ import annotations

import pytest

from omlx.measure.sample import Gain, Spread, geometric_mean, rotate


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
