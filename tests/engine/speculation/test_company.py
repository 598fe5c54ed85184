"""What passes over several rows cost, and what hybrids draft in them."""

from __future__ import annotations

import pytest

from omlx.bench.drive import fixed_costs, flat
from omlx.engine.speculation.cost_model import PLAIN, CostModel
from omlx.engine.speculation.drafter import Proposal
from omlx.engine.speculation.policy import History, RowPolicy


def test_of_rows_that_share_a_pass_hybrids_draft_only_likely_tokens() -> None:
    longest = {}
    for rows, recurrent in ((1, True), (2, True), (2, False)):
        policy = RowPolicy(model := fixed_costs(flat), History(), recurrent=recurrent)
        model.learn_batch(2, PLAIN, 100, flat(2))
        step = model.next_pass(rows, 100)
        candidate = policy.choose([Proposal("draft", 16, lag=1)], 1, step).best
        longest[rows, recurrent] = candidate.forecast.end - 1
    assert longest == {(1, True): 6, (2, True): 1, (2, False): 6}


def test_rows_draft_once_a_pass_of_so_many_was_measured() -> None:
    model = CostModel(fixed_costs(flat).target)
    lookup, policy = Proposal("ngram", 32, match=8), RowPolicy(model, History())
    assert not policy.choose([lookup], 1, model.next_pass(2, 100)).best.decision.pays
    model.learn_batch(2, PLAIN, 100, flat(2))
    assert policy.choose([lookup], 1, model.next_pass(2, 100)).best.decision.pays


def test_passes_over_rows_that_are_not_measured_cost_those_of_a_row_alone() -> None:
    model = fixed_costs(flat)
    for width in (1, 4, 16):
        assert model.batch_pass(3, width, 100) == model.verify(3 * width, 100)


def test_a_measured_pass_scales_the_widths_beside_it() -> None:
    model = CostModel(fixed_costs(flat).target)
    assert not model.plain_step(4, 100)
    for _ in range(3):
        model.learn_batch(4, PLAIN, 100, 2 * flat(4))
        model.learn_batch(4, 8, 100, 3 * flat(32))
    assert model.plain_step(4, 100)
    assert model.batch_pass(4, PLAIN, 100) == pytest.approx(2 * flat(4))
    assert model.batch_pass(4, 8, 100) == pytest.approx(3 * flat(32))
    assert model.batch_pass(4, 2, 100) == pytest.approx(2 * flat(8))
    assert model.batch_pass(4, 10, 100) == pytest.approx(3 * flat(40))


def test_drafts_grow_by_what_a_batch_of_so_many_has_verified() -> None:
    model, longest = CostModel(), []
    for width in (PLAIN, 1, 2):
        for _ in range(3):
            model.target.learn(width, 100, flat(width))
    policy = RowPolicy(model, History())
    lookup = Proposal("ngram", 64, match=33)
    for verified in (PLAIN, 5, 9):
        model.learn_batch(2, verified, 100, flat(2 * verified))
        policy.observe_verification(lookup, 4, 4)
        longest.append(policy.choose([lookup], 1, model.next_pass(2, 100)).best.forecast.end - 1)
    assert longest == [4, 9, 17]
    model.learn_batch(4, PLAIN, 100, flat(4))
    assert policy.choose([lookup], 1, model.next_pass(4, 100)).best.forecast.end - 1 == 4


def test_costs_of_several_rows_are_saved() -> None:
    model = CostModel()
    model.learn_batch(2, 4, 100, 0.5)
    saved = CostModel.from_json(model.to_json())
    assert saved.plain_step(2, 100)
    assert saved.to_json() == model.to_json()
    assert not CostModel.from_json({"target": [], "drafts": {}}).batches


def test_a_plain_step_costs_what_was_measured_where_no_single_row_was() -> None:
    model = CostModel()
    for _ in range(3):
        model.learn_batch(8, PLAIN, 100, 0.07)
        model.learn_batch(8, 3, 100, 0.113)
    assert model.plain_step(8, 100) == pytest.approx(0.07)
    assert model.batch_pass(8, 3, 100) == pytest.approx(0.113)


def test_a_pass_that_drafting_leaves_no_time_for_is_not_learned() -> None:
    model = CostModel()
    model.learn_batch(8, PLAIN, 100, 0.07)
    model.learn_batch(8, 2, 100, 0.03)
    assert not model.batch_samples(8, 2, 100)
    model.learn_batch(8, 2, 100, 0.1)
    assert model.batch_samples(8, 2, 100) == 1
