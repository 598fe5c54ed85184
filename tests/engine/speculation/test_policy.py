"""Single decisions of a row's policy."""

import copy
from dataclasses import replace
from itertools import pairwise

import pytest

from omlx.draft_length import DEFAULT_DRAFT_LENGTH, DraftLength
from omlx.engine.sequence import Interval
from omlx.engine.speculation.acceptance import Acceptance
from omlx.engine.speculation.cost_model import PLAIN, SAMPLES, CostModel, LatencyTable
from omlx.engine.speculation.drafter_record import (
    FIRST_BACKOFF,
    MAX_BACKOFF,
    SKIPPED_MATCHES,
    GateState,
)
from omlx.engine.speculation.exploration import ASSUMED_STEPS, EXPLORATION_SHARE
from omlx.engine.speculation.forecast import FIRST_LENGTH, MIN_REACH
from omlx.engine.speculation.policy import RowPolicy
from omlx.engine.speculation.proposal import Proposal
from omlx.engine.strategy import Clause

CONTEXT = 100
EIGHT = Clause("draft", draft_length=DraftLength(min=8))
LOOKUP = Proposal("ngram", 20, match=10)
MODEL = Proposal("draft", 16, lag=1)


def costs(row: float = 0.03, draft: float = 0.1, widest: int = 64) -> CostModel:
    """A machine on which every row more costs `row` passes."""
    found = CostModel(drafts={"draft": LatencyTable()})
    for _ in range(SAMPLES):
        found.target.learn(PLAIN, CONTEXT, 1.0)
        for width in (1, 2, 4, 8, 16, 32, 64):
            if width <= widest:
                found.target.learn(width, CONTEXT, 1.0 + row * (width - 1))
        found.drafts["draft"].learn(1, CONTEXT, draft)
        found.drafts["draft"].learn(256, CONTEXT, 20 * draft)
    return found


def policy(
    table: CostModel | None = None, draft_length: DraftLength | None = None, **options: object
) -> RowPolicy:
    return RowPolicy(costs() if table is None else table, {}, draft_length, **options)


def plain_steps(row: RowPolicy, proposals: list[Proposal], steps: int) -> list[int]:
    """Return the steps, of so many with no token accepted, that drafted anyway."""
    drafted = []
    for step in range(steps):
        choice = row.choose(proposals, 1, CONTEXT)
        if choice is not None:
            drafted.append(step)
            row.observe_verification(*choice, 0)
            row.observe_time(choice[0], 1, Interval(1.0 + 0.13 * choice[1], 1 + choice[1]), CONTEXT)
        else:
            row.observe_time(None, 1, Interval(1.0), CONTEXT)
    return drafted


def skipped_steps(row: RowPolicy, proposals: list[Proposal], steps: int) -> tuple[list[int], int]:
    """Return the same where decisions may be skipped, and how many were evaluated."""
    drafted, evaluations = [], 0
    for step in range(steps):
        if row.skip(proposals):
            row.observe_time(None, 1, Interval(1.0), CONTEXT)
        else:
            evaluations += 1
            drafted += [step] * len(plain_steps(row, proposals, 1))
    return drafted, evaluations


def good_rounds(row: RowPolicy, proposal: Proposal, rounds: int) -> list[int]:
    lengths = []
    for _ in range(rounds):
        choice = row.choose([proposal], 1, CONTEXT)
        assert choice is not None
        lengths.append(choice[1])
        row.observe_verification(*choice, choice[1])
        drafting = 0.0 if proposal.match else 0.1 * choice[1]
        row.observe_time(
            proposal,
            choice[1] + 1,
            Interval(1.0 + 0.03 * choice[1] + drafting, 1 + choice[1]),
            CONTEXT,
        )
    return lengths


def test_nothing_is_drafted_before_a_plain_step_was_timed():
    row = policy(CostModel(), prompt_hit_rate=1.0)
    assert row.choose([LOOKUP, MODEL], 1, CONTEXT) is None
    row.observe_time(None, 1, Interval(1.0), CONTEXT)
    assert row.choose([LOOKUP], 1, CONTEXT) is not None


def test_without_a_proposal_nothing_is_drafted():
    assert policy().choose([], 1, CONTEXT) is None


@pytest.mark.parametrize("proposal", [Proposal("ngram", 63, match=64), MODEL])
def test_first_drafts_are_short_whatever_the_package_says(proposal):
    row = policy(draft_length=DraftLength(2, 16, 64), prompt_hit_rate=1.0)
    lengths = good_rounds(row, proposal, 6)
    assert lengths[0] <= FIRST_LENGTH < lengths[-1]


def test_drafts_grow_to_twice_the_measured_width_at_most():
    row = policy(costs(widest=4), prompt_hit_rate=1.0)
    lengths = good_rounds(row, Proposal("ngram", 63, match=64), 6)
    assert lengths[1] <= 9
    assert all(after <= 2 * before + 2 for before, after in pairwise(lengths))
    assert lengths[-1] > 32


def test_bounds_hold():
    lengths = good_rounds(policy(draft_length=DraftLength(2, 4, 6), prompt_hit_rate=1.0), LOOKUP, 5)
    assert all(2 <= k <= 6 for k in lengths)


@pytest.mark.parametrize(
    ("window", "proposal"),
    [
        (DraftLength(8, 16, 16), Proposal("ngram", 63, match=64)),
        (DraftLength(5, 5, 64), MODEL),
        (DEFAULT_DRAFT_LENGTH, Proposal("ngram", 63, match=64, clause=EIGHT)),
        (DEFAULT_DRAFT_LENGTH, Proposal("draft", 63, clause=EIGHT)),
        (DraftLength(1, 1, 1), MODEL),
    ],
    ids=str,
)
def test_drafts_begin_at_the_lower_bound(window, proposal):
    lengths = good_rounds(policy(draft_length=window, prompt_hit_rate=1.0), proposal, 6)
    shortest = max(window.min, proposal.clause.draft_length.min)
    assert lengths[0] == max(min(FIRST_LENGTH, window.max), shortest)
    assert all(k >= shortest for k in lengths)


def test_a_drafter_that_asks_for_more_than_is_allowed_gets_what_is_allowed():
    lengths = good_rounds(
        policy(draft_length=DraftLength(1, 4, 4), prompt_hit_rate=1.0),
        Proposal("draft", 63, clause=EIGHT),
        4,
    )
    assert lengths == [4, 4, 4, 4]


def test_a_drafter_with_a_bound_below_what_all_are_to_draft_drafts_up_to_its_bound():
    four = Proposal("draft", 4, clause=Clause("draft", draft_length=DraftLength(max=4)))
    assert good_rounds(
        policy(draft_length=DraftLength(8, 8, 16), prompt_hit_rate=1.0), four, 4
    ) == [
        4,
        4,
        4,
        4,
    ]


def test_a_proposal_below_the_lower_bound_is_ignored():
    row = policy(draft_length=DraftLength(8, 8, 16), prompt_hit_rate=1.0)
    assert row.choose([Proposal("ngram", 6, match=64)], 1, CONTEXT) is None


def test_a_fixed_draft_length_has_no_gate():
    row = policy(costs(row=1.0), DraftLength.exactly(5))
    for _ in range(50):
        assert row.choose([LOOKUP], 1, CONTEXT) == (LOOKUP, 5)
        row.observe_verification(LOOKUP, 5, 0)
        row.observe_time(LOOKUP, 1, Interval(6.0, 6), CONTEXT)
    assert row.state("ngram") == (GateState.ON, None)


@pytest.mark.parametrize(
    "window", [DraftLength(1, 1, 1), DraftLength(2, 2, 2), DraftLength(8, 8, 8)]
)
def test_bounds_that_meet_leave_the_choice_to_draft_nothing(window):
    row = policy(costs(row=1.0), window, prompt_hit_rate=1.0)
    assert plain_steps(row, [LOOKUP, MODEL], 400) == []


def test_where_rows_cost_passes_nothing_is_drafted_and_the_reason_says_so():
    row = policy(costs(row=1.0), prompt_hit_rate=1.0)
    assert plain_steps(row, [LOOKUP, MODEL], 400) == []
    state, reason = row.state("draft")
    assert state is GateState.OFF
    assert reason is not None
    assert reason.code == "spec.off.does_not_pay"
    assert 0.0 < float(reason.params["speedup"]) < 1.0


def test_a_lookup_is_not_used_until_it_would_have_been_right():
    row = policy()
    weak = Proposal("ngram", 6, match=3)
    assert row.choose([weak], 1, CONTEXT) is None
    state, reason = row.state("ngram")
    assert (state, reason and reason.code) == (GateState.OBSERVING, "spec.observing")
    row.observe_time(None, 1, Interval(1.0), CONTEXT)
    row.observe_shadow(weak, 1, 1)
    assert row.choose([weak], 1, CONTEXT) is not None
    assert row.state("ngram") == (GateState.ON, None)


def test_a_prompt_that_repeats_itself_is_evidence_enough():
    assert (
        policy(prompt_hit_rate=0.5).choose([Proposal("ngram", 6, match=3)], 1, CONTEXT) is not None
    )


def test_a_bad_draft_model_is_left_soon_and_probed_ever_less():
    tried = plain_steps(policy(), [MODEL], 1000)
    assert tried[0] == 0
    later = [step for step in tried if step > 20]
    starts = [step for step in later if step - 1 not in later]
    gaps = [b - a for a, b in pairwise(starts)]
    assert len(later) <= 12
    assert gaps == sorted(gaps)
    assert max(gaps) <= MAX_BACKOFF + 1


@pytest.mark.parametrize("row", [0.03, 1.0])
def test_skipped_decisions_are_those_that_evaluation_would_make(row: float):
    drafted, evaluations = skipped_steps(policy(costs(row)), [MODEL], 1000)
    assert drafted == plain_steps(policy(costs(row)), [MODEL], 1000)
    assert evaluations <= 150


def test_no_decision_is_skipped_where_a_lookup_matches_or_a_draft_pays():
    row = policy()
    assert not row.skip([MODEL])
    steps = next(n for n in range(1, 100) if plain_steps(row, [MODEL], 1) == [] and row.skip_steps)
    assert steps > 4
    assert not row.skip([MODEL, LOOKUP])
    assert row.skip([MODEL])
    good = policy()
    good_rounds(good, MODEL, 10)
    assert not good.skip([MODEL])


def test_a_lookup_far_from_paying_is_evaluated_in_one_match_of_eight():
    row, speedups = policy(costs(row=2.0), prompt_hit_rate=1.0), set()
    for _ in range(4 * (SKIPPED_MATCHES + 1)):
        row.choose([LOOKUP], 1, CONTEXT)
        speedups.add(row.records["ngram"].speedup)
        row.observe_shadow(LOOKUP, 4, 0)
    assert len(speedups) == 4
    for _ in range(SKIPPED_MATCHES + 1):
        row.choose([replace(LOOKUP, match=5)], 1, CONTEXT)
    assert row.records["ngram"].speedup not in speedups, "another length was skipped as well"


def test_a_probe_that_hits_continues_until_it_pays():
    row = policy()
    plain_steps(row, [MODEL], 40)
    rounds = 0
    while rounds < 4 * FIRST_BACKOFF and row.state("draft")[0] is not GateState.ON:
        rounds += 1
        if (choice := row.choose([MODEL], 1, CONTEXT)) is not None:
            row.observe_verification(*choice, choice[1])
            row.observe_time(
                choice[0], choice[1] + 1, Interval(1.0 + 0.13 * choice[1], 1 + choice[1]), CONTEXT
            )
        else:
            row.observe_time(None, 1, Interval(1.0), CONTEXT)
    assert row.state("draft")[0] is GateState.ON


def test_a_miss_of_one_drafter_does_not_affect_the_other():
    row = policy(prompt_hit_rate=1.0)
    good_rounds(row, MODEL, 10)
    before = row.choose([MODEL], 1, CONTEXT)
    for _ in range(20):
        row.observe_verification(LOOKUP, 4, 0)
    assert row.choose([MODEL], 1, CONTEXT) == before
    assert row.choose([LOOKUP, MODEL], 1, CONTEXT) == before


def test_the_free_drafter_goes_first_where_both_are_good():
    row = policy(prompt_hit_rate=1.0)
    good_rounds(row, LOOKUP, 5)
    choice = row.choose([LOOKUP, MODEL], 1, CONTEXT)
    assert choice is not None
    assert choice[0] is LOOKUP


def test_a_long_lag_makes_a_draft_model_more_expensive():
    row = policy()
    good_rounds(row, MODEL, 4)
    near = row._forecast(MODEL, 1, CONTEXT)
    far = row._forecast(Proposal("draft", 16, lag=256), 1, CONTEXT)
    assert far.speedup < near.speedup


def test_a_forecast_goes_as_deep_as_there_is_a_chance():
    row, far = policy(), Proposal("ngram", 63, match=40)
    doubtful = Proposal("ngram", 63, match=3)
    good_rounds(row, far, 8)
    assert row._forecast(far, 1, CONTEXT).options[-1].length == 63
    for _ in range(40):
        row.observe_shadow(doubtful, 1, 0)
    forecast = row._forecast(doubtful, 1, CONTEXT)
    assert forecast.options[-1].length < 32
    assert forecast.reach[-1] < MIN_REACH


def test_catching_up_is_spread_over_as_many_rounds_as_it_served_before():
    row, late = policy(), Proposal("draft", 16, lag=256)

    def share() -> float:
        """Seconds of a catch-up that a round is charged."""
        return row.forecaster._catch_up(late, CONTEXT) / row.record_of(late).rounds_to_serve(0)

    good_rounds(row, MODEL, 4)
    trusting = share()
    for _ in range(4):
        row.observe_verification(late, 4, 4)
    assert share() > 4 * trusting, "one catch-up for every round"
    for _ in range(4):
        row.observe_verification(late, 4, 4)
        for _ in range(20):
            row.observe_verification(MODEL, 4, 4)
    assert share() < trusting


def test_probes_wait_while_the_exploration_budget_is_spent():
    """Every probe here costs three steps: the third waits until the answer is long enough."""
    table = costs()
    for _ in range(SAMPLES):
        table.drafts["draft"].learn(256, CONTEXT, 3.0)
    row, late, probes = policy(table), Proposal("draft", 16, lag=256), []
    for step in range(1500):
        choice = row.choose([late if not row.record_of(late).probe_credit else MODEL], 1, CONTEXT)
        if choice is None:
            row.observe_time(None, 1, Interval(1.0), CONTEXT)
            continue
        row.observe_verification(*choice, 0)
        row.observe_time(
            choice[0], 1, Interval(1.13 if choice[0] is MODEL else 4.13, 1 + choice[1]), CONTEXT
        )
        if choice[0] is late:
            probes.append(step)
        assert row._budget.lost_s <= EXPLORATION_SHARE * (step + ASSUMED_STEPS) + 1.0
    assert 3 <= len(probes) <= 6
    assert max(after - before for before, after in pairwise(probes)) > 256


def test_a_forecast_includes_the_tokens_that_a_rejection_leaves_pending():
    history = Acceptance()
    for _ in range(40):
        history.learn(0, 8, 2)
    table = costs(row=0.25, draft=0.02)
    plain, hybrid = (
        RowPolicy(table, {"draft": copy.deepcopy(history)}, recurrent=recurrent)._forecast(
            MODEL, 1, CONTEXT
        )
        for recurrent in (False, True)
    )
    assert hybrid.speedup < plain.speedup


def test_a_draft_is_taken_where_the_pass_is_cheaper_with_it_than_without():
    """Pending tokens are read anyway. Where 12 rows take longer than 16, four more are a gain."""
    table = CostModel()
    for _ in range(SAMPLES):
        for width, seconds in {PLAIN: 1.0, 1: 1.0, 8: 2.08, 12: 3.31, 16: 1.82, 32: 2.85}.items():
            table.target.learn(width, CONTEXT, seconds)
    row = policy(table, recurrent=True, prompt_hit_rate=1.0)
    row.observe_verification(LOOKUP, 8, 8)
    proposal = Proposal("ngram", 4, match=40)
    assert row.choose([proposal], 12, CONTEXT) == (proposal, 4)
    assert row._forecast(proposal, 12, CONTEXT).speedup <= 2 * 5


def test_eight_hours_change_nothing():
    row = policy(prompt_hit_rate=1.0)
    good_rounds(row, LOOKUP, 8)
    twin = copy.deepcopy(row)
    for player, seconds in ((row, 8 * 3600.0), (twin, None)):
        choice = player.choose([LOOKUP], 1, CONTEXT)
        assert choice is not None
        player.observe_verification(*choice, choice[1])
        if seconds:
            player.observe_time(choice[0], choice[1] + 1, Interval(seconds, 1 + choice[1]), CONTEXT)
    assert row.cost_model.to_json() == twin.cost_model.to_json()
    assert row.choose([LOOKUP], 1, CONTEXT) == twin.choose([LOOKUP], 1, CONTEXT)
    assert row._latency == twin._latency
    assert row._budget.elapsed_s == twin._budget.elapsed_s


def test_plain_steps_are_measured_now_and_then_where_the_answer_matters():
    row = policy(costs(row=0.65, draft=0.05))
    plain_at, tokens = [], 0
    while tokens < 4096:
        choice = row.choose([MODEL], 1, CONTEXT)
        if choice is None:
            row.observe_time(
                None, 1, Interval(1.0, PLAIN if plain_at[-1:] == [tokens - 1] else 1), CONTEXT
            )
            plain_at.append(tokens)
        else:
            row.observe_verification(*choice, choice[1])
            row.observe_time(
                MODEL, choice[1] + 1, Interval(1.0 + 0.7 * choice[1], 1 + choice[1]), CONTEXT
            )
        tokens += choice[1] + 1 if choice else 1
    refreshed = [at for at in plain_at if at > 200]
    assert 2 * 5 <= len(refreshed) <= 2 * 8


def test_a_pass_is_padded_to_a_wider_one_that_costs_less():
    table = costs()
    for _ in range(SAMPLES):
        table.target.learn(12, CONTEXT, 3.3)
        table.target.learn(16, CONTEXT, 1.8)
    row = policy(table, trims=True)
    assert row.forecaster.padding(12, CONTEXT, 8) == 4
    assert row.forecaster.padding(12, CONTEXT, 3) == 0, "not past the end"
    assert row.forecaster.padding(8, CONTEXT, 56) == 0, "nothing wider is cheaper"
    assert policy(table).forecaster.padding(12, CONTEXT, 8) == 0, "a cache that cannot trim"
    assert (
        policy(table, DraftLength.exactly(11), trims=True).forecaster.padding(12, CONTEXT, 8) == 0
    )


def test_a_padded_pass_is_learned_by_its_width():
    row = policy(trims=True)
    good_rounds(row, LOOKUP, 1)
    choice = row.choose([LOOKUP], 1, CONTEXT)
    assert choice is not None
    proposal, k = choice
    before = row.cost_model.target.sample_count(k + 4, CONTEXT)
    row.observe_verification(proposal, k, k)
    row.observe_time(proposal, k + 1, Interval(1.2, k + 4), CONTEXT)
    assert row.cost_model.target.sample_count(k + 4, CONTEXT) in (before + 1, SAMPLES)
