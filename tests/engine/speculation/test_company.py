"""One verification width for the rows of a batch, and what passes over several rows cost."""

from __future__ import annotations

import pytest

from omlx.bench.fixed_costs import fixed_costs, flat
from omlx.engine.speculation.cost_model import PLAIN, CompanyCosts, CostModel, LatencyTable
from omlx.engine.speculation.decide import RowForecast, decide
from omlx.engine.speculation.proposal import Proposal
from omlx.engine.speculation.rectangle import Member, choose_width

LOOKUP = Proposal("ngram", 32, match=8)


def row(rate: float, pending: int = 1, longest: int = 32) -> Member:
    """A row whose draft tokens are accepted at `rate` each."""
    tokens = [1.0]
    for k in range(1, longest + 1):
        tokens.append(tokens[-1] + rate**k)
    return Member(RowForecast(pending, tokens, [0.0] * (longest + 1)), LOOKUP)


def idle(pending: int = 1) -> Member:
    return Member(RowForecast(pending))


def linear(width: int) -> float:
    """Seconds of a pass in which every token costs as much as a pass of its own."""
    return float(width)


def test_rows_that_are_right_get_a_wide_pass() -> None:
    width, speedup, pays = choose_width([row(0.99), row(0.99)], flat, flat(1))
    assert pays
    assert width > 16
    assert speedup > 8


def test_a_pass_in_which_every_token_costs_the_same_does_not_pay() -> None:
    assert not choose_width([row(0.9), row(0.9)], linear, 1.0).pays


def test_one_good_row_pays_for_the_padding_of_others_while_tokens_are_cheap() -> None:
    def cheap(width: int) -> float:
        return 1.0 + 0.02 * 2 * width

    def expensive(width: int) -> float:
        return 1.0 + 0.5 * 2 * (width - 1)

    assert choose_width([row(0.95), idle()], cheap, cheap(1)).pays
    assert not choose_width([row(0.95), idle()], expensive, expensive(1)).pays


def test_the_decision_is_the_best_of_all_widths() -> None:
    members = [row(0.9), row(0.6), idle(3)]
    forecasts = [member.forecast for member in members]

    def seconds(width: int) -> float:
        return 1.0 + 0.1 * width + (width % 5 == 0)

    chosen = choose_width(members, seconds, 1.1)
    each = [decide(forecasts, [width], seconds, 1.1).speedup for width in range(3, 34)]
    assert chosen.speedup >= 0.98 * max(each)


def test_a_fixed_length_is_drafted_whatever_it_costs() -> None:
    fixed = Member(RowForecast(2, range(1, 6), [0.0] * 5), LOOKUP, fixed=True)
    width, _, pays = choose_width([fixed, row(0.9)], linear, 0.0)
    assert (width, pays) == (6, True)
    assert fixed.draft_length(width, recurrent=True) == 4
    assert row(0.9).draft_length(width, recurrent=False) == 5


def test_recurrent_layers_get_only_likely_tokens_and_short_drafts_are_not_made() -> None:
    assert row(0.8).draft_length(33, recurrent=True) == 3  # 0.8, 0.64, 0.51
    assert row(0.8).draft_length(33, recurrent=False) == 32
    member = Member(row(0.9).forecast, LOOKUP, shortest=5)
    assert member.draft_length(5, recurrent=False) == 0
    assert member.draft_length(6, recurrent=False) == 5


def test_passes_over_rows_that_are_not_measured_cost_those_of_a_row_alone() -> None:
    model = fixed_costs(flat)
    for width in (1, 4, 16):
        assert model.batch_pass(3, width, 100) == model.verify(3 * width, 100)


def test_a_measured_pass_scales_the_widths_beside_it() -> None:
    model = CostModel(fixed_costs(flat).target, {}, CompanyCosts())
    assert not model.company.knows(4)
    for _ in range(3):
        model.company.learn(4, PLAIN, 100, 2 * flat(4))
        model.company.learn(4, 8, 100, 3 * flat(32))
    assert model.company.knows(4)
    assert model.batch_pass(4, PLAIN, 100) == pytest.approx(2 * flat(4))
    assert model.batch_pass(4, 8, 100) == pytest.approx(3 * flat(32))
    assert model.batch_pass(4, 2, 100) == pytest.approx(2 * flat(8))
    assert model.batch_pass(4, 10, 100) == pytest.approx(3 * flat(40))


def test_costs_of_several_rows_are_saved() -> None:
    model = CostModel(LatencyTable(), {}, CompanyCosts())
    model.company.learn(2, 4, 100, 0.5)
    saved = CostModel.from_json(model.to_json())
    assert saved.company.knows(2)
    assert saved.to_json() == model.to_json()
    assert not CostModel.from_json({"target": [], "drafts": {}}).company.tables
