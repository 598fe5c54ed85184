"""The choice of a width: a pure function of forecasts and costs."""

import random
from dataclasses import replace
from itertools import product

import pytest

from omlx.engine.speculation.config import CONFIG
from omlx.engine.speculation.decide import Decision, RowForecast, certain, decide


def forecast(rate: float, longest: int = 15, draft_s: float = 0.0, pending: int = 1) -> RowForecast:
    """A row whose every next token is accepted at this rate."""
    tokens = [1.0]
    for k in range(1, longest + 1):
        tokens.append(tokens[-1] + rate**k)
    return RowForecast(pending, tokens, [draft_s * k for k in range(longest + 1)])


def flat(width: int) -> float:
    return 1.0 + 0.02 * width


def test_a_good_row_drafts_far_and_a_bad_one_not_at_all():
    assert decide([forecast(0.99)], flat, 1.0) == Decision(
        16, pytest.approx(sum(0.99**k for k in range(16)) / 1.32), pays=True
    )
    assert not decide([forecast(0.01)], flat, 1.0).pays
    assert not decide([forecast(0.99)] * 2, float, 1.0).pays, "rows that cost passes"
    assert not decide([forecast(0.99)], flat, 0.0).pays, "no plain step was measured"


def test_a_tile_that_is_cheaper_than_narrower_passes_is_found():
    table = {2: 1.3, 4: 1.9, 8: 2.1, 16: 1.8}
    assert decide([forecast(0.9)], lambda width: table.get(width, 3.0), 1.0).width == 16


def test_plain_steps_that_seem_slower_than_wide_passes_do_not_make_a_useless_draft_pay():
    assert not decide([forecast(0.02, draft_s=0.1)], lambda width: 0.6, 1.0).pays
    assert decide([forecast(0.5, draft_s=0.1)], lambda width: 0.6, 1.0).pays


def test_the_narrower_of_two_equal_widths_is_taken():
    assert decide([forecast(0.0)], lambda width: 1.0, 1.0).width == 2


def test_the_time_of_drafting_counts():
    free, dear = forecast(0.9), forecast(0.9, draft_s=0.4)
    assert decide([free], flat, 1.0).width > decide([dear], flat, 1.0).width


def test_what_is_pending_is_read_anyway_and_not_charged_to_the_draft():
    behind = decide([forecast(0.9, pending=5)], flat, 1.0)
    level = decide([forecast(0.9)], flat, 1.0)
    assert behind.width - 5 == level.width - 1
    assert behind.speedup == pytest.approx(level.speedup, rel=0.05)


def test_a_row_is_a_rectangle_of_one_and_equal_rows_decide_like_one():
    four = decide([forecast(0.8)] * 4, lambda width: 4 * flat(width), 4.0)
    assert four == decide([forecast(0.8)], flat, 1.0)


def test_a_row_without_a_proposal_is_padded_and_shares_the_time():
    idle = RowForecast(1)
    assert idle.draft_length(16) == 0
    company = decide([forecast(0.95), idle], lambda w: flat(2 * w), flat(2))
    alone = decide([forecast(0.95)], flat, flat(1))
    assert 1.0 < company.speedup < alone.speedup


@pytest.mark.parametrize("seed", range(30))
def test_it_is_what_a_search_over_all_candidates_finds(seed):
    rng = random.Random(seed)
    rows = [
        forecast(rng.random(), rng.randrange(1, 16), rng.random() / 5, rng.randrange(1, 4))
        for _ in range(rng.randrange(1, 5))
    ]
    costs = {width: 1.0 + rng.random() * width / 4 for width in range(1, 20)}
    found = decide(rows, costs.__getitem__, 1.0)
    backlog = max(row.pending for row in rows)
    owed = costs[backlog] - 1.0 if backlog > 1 else 0.0

    def speedup(width: int, rate: float) -> float:
        pairs = [(row, row.draft_length(width, rate)) for row in rows]
        tokens = sum(row.tokens[k] for row, k in pairs)
        seconds = costs[width] - owed + sum(row.seconds[k] for row, k in pairs)
        return tokens / max(seconds, 1.0) / len(rows)

    first = max(backlog, min(row.pending + 1 for row in rows))
    last = max(row.end for row in rows)
    widths = {first, last, *(width for width in CONFIG.widths if first < width < last)}
    best = max(speedup(width, rate) for width in widths for rate in (0.0, found.rate))
    assert found.speedup == pytest.approx(speedup(found.width, found.rate))
    assert found.speedup >= 0.86 * best, "ties of one percent add up over 14 widths at most"
    assert found.pays == (found.speedup >= 1.05)


def test_one_good_row_pays_for_the_padding_of_others_while_tokens_are_cheap():
    def cheap(width: int) -> float:
        return 1.0 + 0.02 * 2 * width

    def expensive(width: int) -> float:
        return 1.0 + 0.5 * 2 * (width - 1)

    good, idle = forecast(0.95, 32), RowForecast(1)
    assert decide([good, idle], cheap, cheap(1)).pays
    assert not decide([good, idle], expensive, expensive(1)).pays


def test_a_fixed_length_is_drafted_whatever_it_costs():
    fixed, other = RowForecast(2, range(1, 6), [0.0] * 5, fixed=True), forecast(0.9, 32)
    width, _, pays, _ = decide([fixed, other], float, 0.0)
    assert (width, pays) == (6, True)
    assert (fixed.draft_length(width), other.draft_length(width)) == (4, 5)


def test_in_company_a_slow_drafter_drafts_only_what_is_worth_the_wait_of_all():
    copying, head = forecast(0.95, 32), forecast(0.5, 32, draft_s=0.1)
    decision = decide([copying, copying, copying, head], flat, 1.0)
    assert copying.draft_length(decision.width, decision.rate) == decision.width - 1 > 8
    assert head.draft_length(decision.width, decision.rate) <= 1, "a token more takes 0.1 s"
    assert head.draft_length(decision.width) == decision.width - 1, "as many as fit"


def test_in_company_no_other_lengths_are_much_faster():
    rng = random.Random(5)
    for _ in range(200):
        rows = [
            forecast(rng.uniform(0.2, 0.98), 6, draft_s=rng.choice((0.0, rng.uniform(0.01, 0.3))))
            for _ in range(3)
        ]
        width, _, pays, rate = decide(rows, flat, 1.0)

        def throughput(
            width: int, lengths: tuple[int, ...], rows: list[RowForecast] = rows
        ) -> float:
            chosen = [*zip(rows, lengths, strict=True)]
            seconds = flat(width) + sum(row.seconds[k] for row, k in chosen)
            return sum(row.tokens[k] for row, k in chosen) / seconds

        best = max(throughput(1 + max(lengths), lengths) for lengths in product(range(7), repeat=3))
        if pays:
            chosen = tuple(row.draft_length(width, rate) for row in rows)
            assert throughput(width, chosen) >= 0.97 * best


def test_a_draft_below_the_lower_bound_is_not_made():
    row = replace(forecast(0.9), shortest=5)
    assert (row.draft_length(5), row.draft_length(6)) == (0, 5)
    assert decide([row], flat, 1.0).width >= 6
    assert decide([row, RowForecast(9)], flat, 1.0).width >= 9


def test_a_certain_draft_is_as_long_as_the_cost_of_wide_passes_allows():
    assert decide([certain(1, 32)], flat, 1.0).width == 33
    assert decide([certain(1, 32, draft_s=0.9)], flat, 1.0).width < 33
