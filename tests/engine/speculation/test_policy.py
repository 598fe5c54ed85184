"""Single decisions of a row's policy."""

import copy
from dataclasses import replace
from itertools import pairwise

import pytest

from omlx.draft_length import DEFAULT_DRAFT_LENGTH, DraftLength
from omlx.engine.speculation.acceptance import Acceptance
from omlx.engine.speculation.config import CONFIG
from omlx.engine.speculation.cost_model import PLAIN, CostModel, LatencyTable
from omlx.engine.speculation.decide import Decision
from omlx.engine.speculation.drafter import Proposal
from omlx.engine.speculation.policy import Choice, GateState, History, RowPolicy
from omlx.engine.speculation.strategy import Clause
from omlx.engine.step.row import Interval
from omlx.engine.types import Traits

CONTEXT = 100
EIGHT = Clause("draft", draft_length=DraftLength(min=8))
LOOKUP = Proposal("ngram", 20, match=10)
MODEL = Proposal("draft", 16, lag=1)


def costs(row: float = 0.03, draft: float = 0.1, widest: int = 64) -> CostModel:
    """A machine on which every row more costs `row` passes."""
    found = CostModel(drafts={"draft": LatencyTable()})
    for _ in range(CONFIG.samples):
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
    return RowPolicy(costs() if table is None else table, History(), draft_length, **options)


def chosen(
    row: RowPolicy, proposals: list[Proposal], pending: int, context: int
) -> tuple[Proposal, int] | None:
    """Return what a row that is alone drafts."""
    step = row.cost_model.next_pass(1, context)
    choice = row.choose(row.due(proposals), pending, step)
    row.record(proposals, choice)
    proposal, forecast, decision = choice.best
    if proposal is None or not decision.pays:
        return None
    return proposal, forecast.draft_length(decision.width)


def decided(row: RowPolicy, proposal: Proposal, pending: int, context: int) -> Decision:
    step = row.cost_model.next_pass(1, context)
    candidate = row.evaluate(proposal, pending, step)
    row.record([proposal], Choice(candidate, (candidate,)))
    return candidate.decision


def plain_steps(row: RowPolicy, proposals: list[Proposal], steps: int) -> list[int]:
    """Return the steps, of so many with no token accepted, that drafted anyway."""
    drafted = []
    for step in range(steps):
        choice = chosen(row, proposals, 1, CONTEXT)
        if choice is not None:
            drafted.append(step)
            row.observe_verification(*choice, 0)
            row.observe_time(choice[0], 1, Interval(1.0 + 0.13 * choice[1], 1 + choice[1]), CONTEXT)
        else:
            row.observe_time(None, 1, Interval(1.0), CONTEXT)
    return drafted


def good_rounds(row: RowPolicy, proposal: Proposal, rounds: int) -> list[int]:
    lengths = []
    for _ in range(rounds):
        choice = chosen(row, [proposal], 1, CONTEXT)
        lengths.append(choice[1])
        row.observe_verification(*choice, choice[1])
        drafting = 0.0 if proposal.match else 0.1 * choice[1]
        interval = Interval(1.0 + 0.03 * choice[1] + drafting, 1 + choice[1])
        row.observe_time(proposal, choice[1] + 1, interval, CONTEXT)
    return lengths


def test_nothing_is_drafted_before_a_plain_step_was_timed():
    row = policy(CostModel())
    assert chosen(row, [LOOKUP, MODEL], 1, CONTEXT) is None
    row.observe_time(None, 1, Interval(1.0), CONTEXT)
    assert chosen(row, [LOOKUP], 1, CONTEXT) is not None


def test_without_a_proposal_nothing_is_drafted():
    assert chosen(policy(), [], 1, CONTEXT) is None


@pytest.mark.parametrize("proposal", [Proposal("ngram", 63, match=64), MODEL])
def test_first_drafts_have_the_initial_length_at_most(proposal):
    lengths = good_rounds(policy(draft_length=DraftLength(2, 5, 64)), proposal, 6)
    assert lengths[0] <= 5 < lengths[-1]


def test_first_drafts_are_short_while_no_wide_pass_is_measured():
    lengths = good_rounds(policy(costs(widest=1)), Proposal("ngram", 63, match=64), 1)
    assert lengths == [CONFIG.first_length]


def test_drafts_grow_to_twice_the_measured_width_at_most():
    row = policy(costs(widest=4))
    lengths = good_rounds(row, Proposal("ngram", 63, match=64), 6)
    assert lengths[0] <= 7
    assert all(after <= 2 * before + 2 for before, after in pairwise(lengths))
    assert lengths[-1] > 32


@pytest.mark.parametrize(
    ("window", "proposal"),
    [
        (DraftLength(2, 4, 6), LOOKUP),
        (DraftLength(8, 16, 16), Proposal("ngram", 63, match=64)),
        (DraftLength(5, 5, 64), MODEL),
        (DEFAULT_DRAFT_LENGTH, Proposal("ngram", 63, match=64, clause=EIGHT)),
        (DEFAULT_DRAFT_LENGTH, Proposal("draft", 63, clause=EIGHT)),
        (DraftLength(1, 1, 1), MODEL),
    ],
    ids=str,
)
def test_bounds_hold_and_drafts_begin_at_the_lower_one(window, proposal):
    lengths = good_rounds(policy(draft_length=window), proposal, 6)
    shortest = max(window.min, proposal.clause.draft_length.min)
    assert shortest <= lengths[0] <= max(window.initial, shortest)
    assert all(shortest <= k <= window.max for k in lengths)


def test_a_drafter_that_asks_for_more_than_is_allowed_gets_what_is_allowed():
    row, eight = policy(draft_length=DraftLength(1, 4, 4)), Proposal("draft", 63, clause=EIGHT)
    assert good_rounds(row, eight, 4) == [4, 4, 4, 4]


def test_a_drafter_with_a_bound_below_what_all_are_to_draft_drafts_up_to_its_bound():
    four = Proposal("draft", 4, clause=Clause("draft", draft_length=DraftLength(max=4)))
    assert good_rounds(policy(draft_length=DraftLength(8, 8, 16)), four, 4) == [4, 4, 4, 4]


def test_a_proposal_below_the_lower_bound_is_ignored():
    row = policy(draft_length=DraftLength(8, 8, 16))
    assert chosen(row, [Proposal("ngram", 6, match=64)], 1, CONTEXT) is None


def test_a_fixed_draft_length_has_no_gate():
    row = policy(costs(row=1.0), DraftLength.exactly(5))
    for _ in range(50):
        assert chosen(row, [LOOKUP], 1, CONTEXT) == (LOOKUP, 5)
        row.observe_verification(LOOKUP, 5, 0)
        row.observe_time(LOOKUP, 1, Interval(6.0, 6), CONTEXT)
    assert row.state("ngram") == (GateState.ON, None)


@pytest.mark.parametrize(
    "window", [DraftLength(1, 1, 1), DraftLength(2, 2, 2), DraftLength(8, 8, 8)]
)
def test_bounds_that_meet_leave_the_choice_to_draft_nothing(window):
    row = policy(costs(row=1.0), window)
    assert plain_steps(row, [LOOKUP, MODEL], 400) == []


def test_where_rows_cost_passes_nothing_is_drafted_and_the_reason_says_so():
    row = policy(costs(row=1.0))
    assert plain_steps(row, [LOOKUP, MODEL], 400) == []
    state, reason = row.state("draft")
    assert state is GateState.OFF
    assert reason.code == "spec.off.does_not_pay"
    assert 0.0 < float(reason.params["speedup"]) < 1.0


@pytest.mark.parametrize("row", [0.03, 1.0])
def test_a_draft_model_that_does_not_pay_is_evaluated_in_one_step_of_sixteen(row, monkeypatch):
    evaluated = []
    evaluate = RowPolicy.evaluate
    monkeypatch.setattr(
        RowPolicy, "evaluate", lambda *args: evaluated.append(args) or evaluate(*args)
    )
    drafted = plain_steps(policy(costs(row)), [MODEL], 1000)
    assert len(evaluated) - len(drafted) <= 80


def test_a_probe_that_hits_continues_until_it_pays():
    row = policy()
    plain_steps(row, [MODEL], 40)
    rounds = 0
    while rounds < 4 * 32 and row.state("draft")[0] is not GateState.ON:
        rounds += 1
        if (choice := chosen(row, [MODEL], 1, CONTEXT)) is not None:
            row.observe_verification(*choice, choice[1])
            row.observe_time(
                choice[0], choice[1] + 1, Interval(1.0 + 0.13 * choice[1], 1 + choice[1]), CONTEXT
            )
        else:
            row.observe_time(None, 1, Interval(1.0), CONTEXT)
    assert row.state("draft")[0] is GateState.ON


def test_a_miss_of_one_drafter_does_not_affect_the_other():
    row = policy()
    good_rounds(row, MODEL, 10)
    before = chosen(row, [MODEL], 1, CONTEXT)
    for _ in range(20):
        row.observe_verification(LOOKUP, 4, 0)
    assert chosen(row, [MODEL], 1, CONTEXT) == before
    assert chosen(row, [LOOKUP, MODEL], 1, CONTEXT) == before


def test_the_free_drafter_goes_first_where_both_are_good():
    row = policy()
    good_rounds(row, LOOKUP, 5)
    choice = chosen(row, [LOOKUP, MODEL], 1, CONTEXT)
    assert choice[0] is LOOKUP


def test_a_lookup_that_was_never_evaluated_is_observed():
    row = policy()
    state, reason = row.state("ngram")
    assert (state, reason and reason.code) == (GateState.OBSERVING, "spec.observing")
    chosen(row, [LOOKUP], 1, CONTEXT)
    assert row.state("ngram") == (GateState.ON, None)


def test_a_lookup_far_from_paying_is_evaluated_in_one_match_of_eight():
    row, speedups = policy(costs(row=2.0)), set()
    for _ in range(32):
        chosen(row, [LOOKUP], 1, CONTEXT)
        speedups.add(row.records["ngram"].speedup)
        row.observe_shadow(LOOKUP, 4, 0)
    assert len(speedups) == 4
    for _ in range(8):
        chosen(row, [replace(LOOKUP, match=5)], 1, CONTEXT)
    assert row.records["ngram"].speedup not in speedups, "another length was skipped as well"


def test_a_bad_draft_model_is_left_soon_and_probed_again_and_again():
    tried = plain_steps(policy(), [MODEL], 3000)
    assert tried[0] == 0
    assert len([step for step in tried if step < 20]) <= 10
    starts = [step for step in tried if step - 1 not in tried and step > 1000]
    assert len(starts) >= 4
    assert min(b - a for a, b in pairwise(starts)) >= CONFIG.skipped_evaluations


@pytest.mark.parametrize("steps", [300, 1000, 3000])
def test_what_a_bad_draft_model_costs_is_bounded(steps):
    row = policy()
    plain_steps(row, [MODEL], steps)
    lost = row._budget.elapsed - steps
    assert lost == pytest.approx(row._budget.lost, abs=0.01)
    assert 1.0 < lost <= CONFIG.exploration_share * steps + CONFIG.first_savings + 1.0


def test_a_long_lag_makes_a_draft_model_more_expensive():
    row = policy()
    good_rounds(row, MODEL, 4)
    near = decided(row, MODEL, 1, CONTEXT)
    far = decided(row, replace(MODEL, lag=256), 1, CONTEXT)
    assert far.speedup < near.speedup


def test_a_forecast_includes_the_tokens_that_a_rejection_leaves_pending():
    history = Acceptance((CONFIG.draft_rate,))
    for _ in range(40):
        history.learn(0, 8, 2)
    table = costs(row=0.25, draft=0.02)
    plain, hybrid = (
        RowPolicy(table, History({"draft": copy.deepcopy(history)}), traits=Traits(recurrent))
        for recurrent in (False, True)
    )
    assert decided(hybrid, MODEL, 1, CONTEXT).speedup < decided(plain, MODEL, 1, CONTEXT).speedup


def test_a_draft_is_taken_where_the_pass_is_cheaper_with_it_than_without():
    """Pending tokens are read anyway. Where 12 rows take longer than 16, four more are a gain."""
    table = CostModel()
    for _ in range(CONFIG.samples):
        for width, seconds in {PLAIN: 1.0, 1: 1.0, 8: 2.08, 12: 3.31, 16: 1.82, 32: 2.85}.items():
            table.target.learn(width, CONTEXT, seconds)
    row = policy(table, traits=Traits(recurrent=True))
    row.observe_verification(LOOKUP, 8, 8)
    proposal = Proposal("ngram", 4, match=40)
    assert chosen(row, [proposal], 12, CONTEXT) == (proposal, 4)
    assert decided(row, proposal, 12, CONTEXT).speedup <= 2 * 5


def skipping(skipped: int) -> Proposal:
    return replace(MODEL, lag=128, skipped=skipped)


def test_a_prompt_is_read_whole_where_it_is_known_to_pay():
    table = costs()
    for _ in range(CONFIG.samples):
        table.drafts["draft"].learn(512, CONTEXT, 2.0)
    history = History({"draft": Acceptance((CONFIG.draft_rate,))})
    for _ in range(40):
        history.acceptance["draft"].learn(0, 8, 7)
    choice = chosen(RowPolicy(table, history), [skipping(300)], 1, CONTEXT)
    assert (choice[0].restarts, choice[0].skipped, choice[0].lag) == (True, 0, 428)


def test_what_the_whole_prompt_is_worth_is_tried_once_drafts_saved_as_much():
    table = costs()
    for _ in range(CONFIG.samples):
        table.drafts["draft"].learn(512, CONTEXT, 12.0)
    row, proposal = policy(table), skipping(400)
    read: list[bool] = []
    for _ in range(80):
        choice = chosen(row, [proposal], 1, CONTEXT)
        read.append(choice[0].restarts)
        if choice[0].restarts:
            break
        good_rounds(row, choice[0], 1)
    assert CONFIG.skipped_evaluations < 2 * len(read) < 80, "two decisions each time"
    assert row._budget.savings.steps <= CONFIG.most_savings


def test_a_fixed_draft_length_reads_all():
    row = policy(costs(), DraftLength.exactly(4))
    choice = chosen(row, [skipping(4000)], 1, CONTEXT)
    assert choice[0].restarts


def test_eight_hours_change_nothing():
    row = policy()
    good_rounds(row, LOOKUP, 8)
    twin = copy.deepcopy(row)
    for player, seconds in ((row, 8 * 3600.0), (twin, None)):
        choice = chosen(player, [LOOKUP], 1, CONTEXT)
        player.observe_verification(*choice, choice[1])
        if seconds:
            player.observe_time(choice[0], choice[1] + 1, Interval(seconds, 1 + choice[1]), CONTEXT)
    assert row.cost_model.to_json() == twin.cost_model.to_json()
    assert chosen(row, [LOOKUP], 1, CONTEXT) == chosen(twin, [LOOKUP], 1, CONTEXT)
    assert row._budget.elapsed == twin._budget.elapsed


def test_a_draft_that_pays_again_is_drafted_when_it_is_asked_for_twice() -> None:
    row = policy()
    row.record_of(MODEL).speedup = 0.5
    for _ in range(2):  # the planner asks before it commits the step in flight, and after
        assert chosen(row, [MODEL], 1, CONTEXT) is not None
