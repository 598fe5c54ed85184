"""The table of measured passes, over one row and several, and hybrid drafts in company."""

import json

import pytest

from lab.bench.drive import fixed_costs, flat
from omlx.engine.speculation.config import CONFIG
from omlx.engine.speculation.cost_model import PLAIN, CostModel, LatencyTable, bucket_of
from omlx.engine.speculation.drafter import Proposal
from omlx.engine.speculation.policy import History, RowPolicy
from omlx.engine.types import Traits

HOURS = 3600.0


def measured(
    table: dict[int, float], context: int = 100, times: int = CONFIG.samples
) -> LatencyTable:
    costs = LatencyTable()
    for _ in range(times):
        for width, seconds in table.items():
            assert costs.learn(width, context, seconds)
    return costs


def test_buckets_are_powers_of_four_from_256():
    assert [bucket_of(n) for n in (1, 256, 257, 1024, 1025, 4096, 4097)] == [0, 0, 1, 1, 2, 2, 3]


def test_nothing_measured_means_nothing_known():
    assert LatencyTable().seconds(4, 100) is None
    assert LatencyTable().plain(100) is None


def test_a_prompt_alone_does_not_say_what_plain_costs():
    costs = LatencyTable()
    costs.learn_chunk(300, 0, 9.0)
    assert costs.plain(100) is None


def test_costs_are_a_sawtooth_read_between_neighbours_only():
    costs = measured({1: 1.0, 8: 2.0, 12: 3.0, 16: 1.8})
    assert [costs.seconds(w, 100) for w in (8, 12, 16)] == [2.0, 3.0, 1.8]
    assert costs.seconds(10, 100) == pytest.approx(2.5)
    assert costs.seconds(14, 100) == pytest.approx(2.4)


def test_wider_than_measured_continues_at_the_cost_per_row_so_far():
    assert measured({1: 1.0, 5: 5.0}).seconds(9, 100) == pytest.approx(9.0)
    assert measured({1: 1.0}).seconds(5, 100) == pytest.approx(1.32)


def test_a_draft_model_may_be_known_before_its_target():
    costs = CostModel()
    costs.learn_draft("draft", 4, 1, 100, 0.4)
    assert costs.draft("draft", 1, 100) == pytest.approx(0.1)
    assert costs.draft("draft", 40, 100) == 0.0


def test_a_prompt_bounds_the_guess_for_narrow_windows():
    costs = measured({1: 1.0})
    costs.learn_chunk(300, 100, 300.0)
    assert costs.seconds(5, 100) == pytest.approx(5.0)
    assert costs.widest == 1


def test_the_middle_of_the_samples_counts():
    costs = LatencyTable()
    for seconds in (1.0, 1.0, 5.0, 1.0, 1.0):
        costs.learn(1, 100, seconds)
    assert costs.seconds(1, 100) == pytest.approx(1.0)


def test_another_context_borrows_the_shape_at_the_nearest_width_both_know():
    costs = measured({1: 1.0, 4: 2.0, 16: 2.0})
    for _ in range(CONFIG.samples):
        costs.learn(1, 2000, 1.1)
        costs.learn(16, 2000, 4.0)
    assert costs.seconds(4, 2000) == pytest.approx(2.2, rel=0.1)
    assert costs.seconds(16, 2000) / costs.seconds(1, 2000) == pytest.approx(4.0 / 1.1)
    assert costs.seconds(4, 100) / costs.seconds(1, 100) == pytest.approx(2.0)


@pytest.mark.parametrize("width", [PLAIN, 1, 4])
def test_eight_hours_are_not_learned(width):
    costs = measured({PLAIN: 0.9, 1: 1.0, 4: 2.0})
    before = costs.to_json(), costs.drift
    assert not costs.learn(width, 100, 8 * HOURS)
    assert (costs.to_json(), costs.drift) == before


def test_heat_seen_at_one_width_holds_for_the_others():
    costs = measured({1: 1.0, 4: 2.0})
    for _ in range(CONFIG.samples):
        costs.learn(4, 100, 2.6)
    assert costs.drift == pytest.approx(1.3)
    assert costs.seconds(1, 100) == pytest.approx(1.3)


def test_noise_and_a_few_hiccups_are_no_drift():
    costs = measured({1: 1.0, 4: 2.0})
    for i in range(400):
        costs.learn(4, 100, 2.0 * (1.5 if i % 50 == 0 else 1.0 + 0.03 * (i % 3 - 1)))
    assert costs.seconds(1, 100) == pytest.approx(1.0, rel=0.05)


def test_what_is_kept_is_read_back():
    costs = CostModel(measured({PLAIN: 0.9, 1: 1.0, 4: 2.0}), {"small": measured({1: 0.2})})
    kept = CostModel.from_json(json.loads(json.dumps(costs.to_json())))
    assert kept.to_json() == costs.to_json()
    assert kept.verify(3, 5000) == costs.verify(3, 5000)
    assert kept.draft("small", 1, 10) == pytest.approx(0.2)


def test_an_unmeasured_draft_model_costs_its_share_of_the_target():
    costs = CostModel(measured({1: 1.0, 64: 3.0}), draft_share=0.25)
    assert costs.draft("small", 1, 100) == pytest.approx(0.25)
    assert costs.draft("small", 64, 100) == pytest.approx(0.75)


def test_catching_up_is_split_from_drafting_once_a_pass_is_known():
    costs = CostModel(measured({1: 1.0}), draft_share=0.25)
    costs.learn_draft("small", 4, lag=1, context=100, seconds=0.8)
    assert costs.draft("small", 1, 100) == pytest.approx(0.2)
    costs.learn_draft("small", 4, lag=128, context=100, seconds=0.6 + 1.6)
    assert costs.draft("small", 128, 100) == pytest.approx(1.6)
    assert costs.draft("small", 1, 100) == pytest.approx(0.2)


def test_an_expectation_that_was_wrong_is_given_up():
    """A step that was far too short must not make later ones outliers for good."""
    costs = LatencyTable()
    costs.learn(PLAIN, 100, 0.001)
    assert [costs.learn(PLAIN, 100, 0.04) for _ in range(6)] == [False, False, True] * 2
    for _ in range(6):
        costs.learn(PLAIN, 100, 0.04)
    assert costs.plain(100) == pytest.approx(0.04)


def test_a_prompt_that_was_slept_through_says_nothing_of_narrower_passes():
    costs, slept = measured({1: 1.0}, times=3), LatencyTable()
    slept.learn_chunk(300, 100, 8 * HOURS)  # the very first: nothing is expected yet
    for _ in range(3):
        slept.learn(1, 100, 1.0)
    assert slept.seconds(8, 100) == costs.seconds(8, 100)


def test_a_pass_that_took_no_time_teaches_nothing():
    costs = LatencyTable()
    assert not costs.learn(1, 100, 0.0)
    assert costs.seconds(1, 100) is None


@pytest.mark.parametrize("width", [2, 5, 64])
def test_a_slow_first_pass_of_a_width_is_not_believed(width):
    """It may have compiled kernels. The next one counts, however slow."""
    costs = measured({1: 1.0}, times=3)
    expected = costs.seconds(width, 100)
    assert costs.learn(width, 100, 3 * expected)
    assert costs.seconds(width, 100) == expected
    costs.learn(width, 100, 3 * expected)
    assert costs.seconds(width, 100) == pytest.approx(3 * expected)


@pytest.mark.parametrize("width", [2, 5, 64])
def test_eight_hours_are_not_learned_for_a_width_that_was_never_seen_either(width):
    costs = measured({1: 1.0}, times=3)
    expected = costs.seconds(width, 100)
    costs.learn(width, 100, 8 * HOURS)
    assert costs.seconds(width, 100) == expected


def test_catching_up_never_takes_negative_time() -> None:
    """A pass over one token that was measured slow makes one over several look faster."""
    slow_first = {"small": measured({1: 0.024, 8: 0.002})}
    costs = CostModel(LatencyTable(), slow_first)
    assert costs.catch_up("small", 8, 100) == 0.0


def test_of_rows_that_share_a_pass_hybrids_draft_only_likely_tokens() -> None:
    longest = {}
    for rows, recurrent in ((1, True), (2, True), (2, False)):
        policy = RowPolicy(model := fixed_costs(flat), History(), traits=Traits(recurrent))
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


def test_plain_steps_are_measured_in_place_of_drafts_but_not_for_good() -> None:
    """Whatever comes between them: rows with masks, and of several passes, are never timed."""
    model, measured = CostModel(), []
    for turn in range(3000):
        sure = turn % 3 == 0  # another row of the same key drafts, for one
        measured.append(not sure and model.plain_due(1, 5000, speedup=1.5))
        model.count_pass(1, 5000, measures=measured[-1])
    first = measured.index(False, measured.index(True) + 9)
    assert sum(measured[:first]) == CONFIG.plain_run
    assert sum(measured) <= 7 * CONFIG.plain_run
    assert sum(measured[1500:]) >= CONFIG.plain_run, "and again"


def test_a_sure_forecast_is_compared_with_plain_steps_too() -> None:
    model, measured = CostModel(), []
    for _ in range(5000):
        measured.append(model.plain_due(1, 5000, speedup=3.0))
        model.count_pass(1, 5000, measures=measured[-1])
    assert not any(measured[:1000])
    assert sum(measured) == 4 * CONFIG.plain_run
