from __future__ import annotations

import pytest

from omlx.draft_length import DEFAULT_DRAFT_LENGTH, Contradiction, DraftLength


@pytest.mark.parametrize(
    ("asked", "configured", "bounds"),
    [
        (DraftLength(), DEFAULT_DRAFT_LENGTH, (16, 1, 64)),
        (DraftLength(), DraftLength.exactly(5), (5, 5, 5)),
        (DraftLength(fixed=0), DEFAULT_DRAFT_LENGTH, (0, 0, 0)),
        (DraftLength(fixed=7), DraftLength(2, 4, 6), (7, 7, 7)),
        (DraftLength(min=6), DEFAULT_DRAFT_LENGTH, (16, 6, 64)),
        (DraftLength(max=3), DEFAULT_DRAFT_LENGTH, (3, 1, 3)),
        (DraftLength(max=1), DEFAULT_DRAFT_LENGTH, (1, 1, 1)),
        (DraftLength(min=8, max=16), DraftLength.exactly(4), (8, 8, 8)),
        (DraftLength(max=16), DraftLength.exactly(4), (4, 4, 4)),
        (DraftLength(min=2, max=16), DraftLength(3, 4, 6), (4, 2, 16)),
        (DraftLength(min=2), DraftLength(3, 4, 6), (4, 2, 6)),
        (DraftLength(max=16), DraftLength(3, 4, 6), (4, 3, 16)),
        (DraftLength(min=8), DraftLength(3, 4, 6), (8, 8, 8)),
        (DraftLength(max=2), DraftLength(3, 4, 6), (2, 2, 2)),
    ],
)
def test_a_request_overrides_the_configured_bounds_and_limits_the_others(
    asked: DraftLength, configured: DraftLength, bounds: tuple[int, int, int]
) -> None:
    merged = DraftLength.merge(asked, configured)
    assert (merged.initial, merged.min, merged.max) == bounds
    fixed = asked.fixed is not None or configured.fixed is not None
    assert merged.fixed == (merged.max if fixed else None)


@pytest.mark.parametrize(
    ("length", "contradiction"),
    [
        (DraftLength(fixed=0), None),
        (DraftLength(4, 0, 4, 4), None),
        (DraftLength(min=5, max=4), Contradiction("draft_min", 5, "draft_max", 4)),
        (DraftLength(fixed=5, max=4), Contradiction("num_draft_tokens", 5, "draft_max", 4)),
        (DraftLength(fixed=0, min=1), Contradiction("draft_min", 1, "num_draft_tokens", 0)),
    ],
)
def test_bounds_that_contradict_each_other(
    length: DraftLength, contradiction: Contradiction | None
) -> None:
    assert length.contradiction == contradiction
