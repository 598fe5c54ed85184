"""The order in which sides take turns, so that none always runs on the warmer machine.

trial 1   A B   B A   A B …      two sides: the order alternates from pair to pair and
trial 2   B A   A B   B A …      from trial to trial
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def rotate(items: Sequence[Item], number: int) -> list[Item]:
    """Return the items beginning with the one at `number`, modulo their count."""
    first = number % len(items)
    return [*items[first:], *items[:first]]


def run_pair(
    ours: Callable[[], Result], theirs: Callable[[], Result], *, swap: bool
) -> tuple[Result, Result]:
    """Run both sides, theirs first if `swap`. Returns (ours, theirs)."""
    if swap:
        their_result = theirs()
        return ours(), their_result
    our_result = ours()
    return our_result, theirs()
