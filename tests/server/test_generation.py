from __future__ import annotations

import pytest

from omlx.engine.strategy import WindowBounds
from omlx.server.generation import WindowWish


@pytest.mark.parametrize(
    ("wish", "configured", "bounds"),
    [
        (WindowWish(), WindowBounds(), (4, 1, 64)),
        (WindowWish(), WindowBounds.fixed_at(5), (5, 5, 5)),
        (WindowWish(fixed=0), WindowBounds(), (0, 0, 0)),
        (WindowWish(fixed=7), WindowBounds(4, 2, 6), (7, 7, 7)),
        (WindowWish(shortest=6), WindowBounds(), (6, 6, 64)),
        (WindowWish(longest=3), WindowBounds(), (3, 1, 3)),
        (WindowWish(longest=1), WindowBounds(), (1, 1, 1)),
        (WindowWish(shortest=8, longest=16), WindowBounds.fixed_at(4), (8, 8, 8)),
        (WindowWish(longest=16), WindowBounds.fixed_at(4), (4, 4, 4)),
        (WindowWish(shortest=2, longest=16), WindowBounds(4, 3, 6), (4, 2, 16)),
        (WindowWish(shortest=2), WindowBounds(4, 3, 6), (4, 2, 6)),
        (WindowWish(longest=16), WindowBounds(4, 3, 6), (4, 3, 16)),
        (WindowWish(shortest=8), WindowBounds(4, 3, 6), (8, 8, 8)),
        (WindowWish(longest=2), WindowBounds(4, 3, 6), (2, 2, 2)),
    ],
)
def test_a_request_goes_before_what_is_configured_and_bounds_the_rest(
    wish: WindowWish, configured: WindowBounds, bounds: tuple[int, int, int]
) -> None:
    found = wish.within(configured)
    assert (found.initial, found.shortest, found.longest) == bounds
    assert found.fixed == (wish.fixed is not None or configured.fixed)


@pytest.mark.parametrize(
    ("wish", "found"),
    [
        (WindowWish(fixed=0), None),
        (WindowWish(4, 4, 4), None),
        (WindowWish(shortest=5, longest=4), ("draft_min", 5, "draft_max", 4)),
        (WindowWish(fixed=5, longest=4), ("num_draft_tokens", 5, "draft_max", 4)),
        (WindowWish(fixed=0, shortest=1), ("draft_min", 1, "num_draft_tokens", 0)),
    ],
)
def test_lengths_that_contradict_each_other(
    wish: WindowWish, found: tuple[str, int, str, int] | None
) -> None:
    assert wish.contradiction == found
