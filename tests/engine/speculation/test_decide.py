"""The choice of a width: a pure function of forecasts and costs."""

import random

import pytest

from omlx.engine.speculation.decide import Decision, RowForecast, decide

WIDTHS = (2, 4, 8, 16)


def forecast(rate: float, longest: int = 15, draft_s: float = 0.0, pending: int = 1) -> RowForecast:
    """A row whose every next token is accepted at this rate."""
    tokens = [1.0]
    for k in range(1, longest + 1):
        tokens.append(tokens[-1] + rate**k)
    return RowForecast(pending, tokens, [draft_s * k for k in range(longest + 1)])


def flat(width: int) -> float:
    return 1.0 + 0.02 * width


def test_a_good_row_drafts_far_and_a_bad_one_not_at_all():
    assert decide([forecast(0.99)], WIDTHS, flat, 1.0) == Decision(
        16, pytest.approx(sum(0.99**k for k in range(16)) / 1.32), pays=True
    )
    assert not decide([forecast(0.01)], WIDTHS, flat, 1.0).pays
    assert not decide([forecast(0.99)], WIDTHS, float, 1.0).pays, "rows that cost passes"


def test_a_tile_that_is_cheaper_than_narrower_passes_is_found():
    table = {2: 1.3, 4: 1.9, 8: 2.1, 16: 1.8}
    assert decide([forecast(0.9)], WIDTHS, table.__getitem__, 1.0).width == 16


def test_the_narrower_of_two_equal_widths_is_taken():
    assert decide([forecast(0.0)], WIDTHS, lambda width: 1.0, 1.0).width == 2


def test_the_time_of_drafting_counts():
    free, dear = forecast(0.9), forecast(0.9, draft_s=0.4)
    assert decide([free], WIDTHS, flat, 1.0).width > decide([dear], WIDTHS, flat, 1.0).width


def test_what_is_pending_is_read_anyway_and_not_charged_to_the_draft():
    behind = decide([forecast(0.9, pending=5)], (6, 8, 12, 20), flat, 1.0)
    level = decide([forecast(0.9)], (2, 4, 8, 16), flat, 1.0)
    assert behind.width - 5 == level.width - 1
    assert behind.speedup == pytest.approx(level.speedup, rel=0.05)


def test_a_row_is_a_rectangle_of_one_and_equal_rows_decide_like_one():
    four = decide([forecast(0.8)] * 4, WIDTHS, lambda width: 4 * flat(width), 4.0)
    assert four == decide([forecast(0.8)], WIDTHS, flat, 1.0)


def test_a_row_without_a_proposal_is_padded_and_shares_the_time():
    idle = RowForecast(1)
    assert idle.draft_length(16) == 0
    company = decide([forecast(0.95), idle], WIDTHS, lambda w: flat(2 * w), flat(2))
    alone = decide([forecast(0.95)], WIDTHS, flat, flat(1))
    assert 1.0 < company.speedup < alone.speedup


@pytest.mark.parametrize("seed", range(30))
def test_it_is_what_a_search_over_all_candidates_finds(seed):
    rng = random.Random(seed)
    rows = [
        forecast(rng.random(), rng.randrange(16), rng.random() / 5, rng.randrange(1, 4))
        for _ in range(rng.randrange(1, 5))
    ]
    costs = {width: 1.0 + rng.random() * width / 4 for width in range(1, 20)}
    found = decide(rows, range(4, 20), costs.__getitem__, 1.0)
    backlog = max(row.pending for row in rows)
    owed = costs[backlog] - 1.0 if backlog > 1 else 0.0

    def speedup(width: int) -> float:
        lengths = [max(0, min(width - row.pending, len(row.tokens) - 1)) for row in rows]
        pairs = list(zip(rows, lengths, strict=True))
        tokens = sum(row.tokens[k] for row, k in pairs)
        seconds = costs[width] - owed + sum(row.seconds[k] for row, k in pairs)
        return tokens / max(seconds, 0.5) / len(rows)

    best = max(map(speedup, range(4, 20)))
    assert found.speedup == pytest.approx(speedup(found.width))
    assert found.speedup >= 0.86 * best, "ties of one percent add up over 16 widths at most"
    assert found.pays == (found.speedup >= 1.05)
