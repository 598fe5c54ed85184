"""The order in which sides take turns."""

from __future__ import annotations

import pytest

from omlx.measure.interleave import rotate, run_pair


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
