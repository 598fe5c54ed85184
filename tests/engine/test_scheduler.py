"""Scheduling in pure Python: order, budgets, limits, batches, ends. Plans run on lists."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from itertools import chain, pairwise, product

import pytest

from omlx.engine.speculation.drafter import Draft
from omlx.engine.step.plan import LAST, Filter, Merge, Open, Plan, Rewind
from omlx.engine.step.row import MOVES, Clock, Row, Status
from omlx.engine.types import Failed, Finished, FinishReason, Limits, PrefillProgress
from omlx.errors import BadRequest, Overloaded, Reason
from tests.engine.device import PLAIN, RECURRENT, Desk, answer, ask
from tests.engine.fakes import Scripted
from tests.refusals import refused

LIMITS = Limits(
    context_length=400,
    max_rows=3,
    max_waiting=4,
    prefill_chunk=32,
    prefill_slice=8,
    num_draft_tokens=4,
)
NO_MERGE = Reason("batch.off.no_merge", {"layer": "Some"})


class Guess(Scripted):
    """Drafts the next integers, the last `wrong` of them false."""

    name = "guess"

    def __init__(self, wrong: int = 0) -> None:
        super().__init__(0, [], [])
        self._wrong = wrong

    def draft(self, row: Row, limit: int) -> Draft | None:
        first = row.tokens[-1] + 1
        right = max(0, limit - self._wrong)
        tokens = [first + i if i < right else -1 for i in range(limit)]
        return Draft(self.name, limit, tuple(tokens)) if limit > 0 else None


def opened(plans: list[Plan]) -> list[int]:
    return [
        op.row for op in chain.from_iterable(plan.ops for plan in plans) if isinstance(op, Open)
    ]


def prefilled(plan: Plan | None) -> int:
    return sum(window.width for window in plan.windows if not window.sample) if plan else 0


def batch_sizes(desk: Desk) -> list[int]:
    """Return the number of rows in each pass."""
    forwards = chain.from_iterable(plan.forwards for plan in desk.plans)
    return [len(forward.windows) for forward in forwards]


def sampled(plan: Plan | None) -> list[int]:
    return [window.row for window in plan.windows if window.sample] if plan else []


def test_requests_are_admitted_and_read_in_the_order_they_came() -> None:
    desk = Desk(LIMITS)
    asked = [ask(f"r{i}", prompt=40) for i in range(4)]
    desk.run(*asked)
    assert opened(desk.plans) == [1, 2, 3, 4]
    firsts = [next(i for i, e in enumerate(desk.events) if e.request_id == one.id) for one in asked]
    assert firsts == sorted(firsts)
    desk.proven()


def test_passes_grow_from_a_short_one_while_they_take_little_time() -> None:
    desk = Desk(replace(LIMITS, context_length=2000, prefill_first=100, prefill_chunk=350))
    desk.submit(ask("h", prompt=1800))
    seconds = [0.1, 0.7, 0.8, 1.4, 1.6, 0.1]
    read = []
    for took in seconds:
        plan = desk.step()
        read.append(prefilled(plan))
        desk.scheduler.planner.observe(plan, took)
    assert read == [100, 200, 350, 350, 350, 175]


def test_a_short_rest_of_a_prompt_does_not_make_passes_grow() -> None:
    desk = Desk(replace(LIMITS, prefill_first=100, prefill_chunk=350))
    desk.submit(ask("a", prompt=40), ask("b", prompt=300))
    first = desk.step()
    desk.scheduler.planner.observe(replace(first, forwards=first.forwards[:1]), 0.1)
    assert prefilled(desk.step()) <= 100


def test_rows_never_exceed_the_limit_and_a_free_row_is_taken_at_once() -> None:
    desk = Desk(LIMITS).submit(*(ask(f"r{i}", max_tokens=4 + 3 * i) for i in range(4)))
    while desk.scheduler.has_work:
        desk.step()
        assert len(desk.scheduler.running) <= 3
    first_end = next(i for i, e in enumerate(desk.events) if isinstance(e, Finished))
    assert [e.request_id for e in desk.events[first_end + 1 :]].count("r3") > 0
    assert len(opened(desk.plans)) == 4


def test_rows_are_given_to_requests_in_turn() -> None:
    """A request with many choices leaves the next free row to one that came after it."""
    desk = Desk(replace(LIMITS, max_waiting=20))
    many = [replace(ask(f"many-{i}", max_tokens=4 + i), group="many") for i in range(8)]
    few = [replace(ask(f"few-{i}", max_tokens=4), group="few") for i in range(2)]
    desk.submit(*many).step()
    desk.run(*few, ask("one", max_tokens=4))
    # The first three rows were free; then the groups without a row have their turn.
    assert opened(desk.proven().plans) == [1, 2, 3, 9, 11, 4, 10, 5, 6, 7, 8]


def test_a_full_queue_refuses_and_keeps_nothing() -> None:
    desk = Desk(LIMITS).submit(*(ask(f"r{i}") for i in range(4)))
    with refused(Overloaded, "engine.queue_full"):
        desk.submit(ask("one too many"))
    desk.run()
    assert not desk.said("one too many")
    desk.run(ask("one too many"))
    assert len(desk.said("one too many")) == 5


def test_a_prompt_that_fills_the_context_is_refused_and_one_shorter_gets_one_token() -> None:
    desk = Desk(LIMITS)
    with refused(BadRequest, "engine.prompt_too_long"):
        desk.submit(ask("long", prompt=400))
    desk.run(ask("fits", prompt=399, max_tokens=None))
    assert len(desk.said("fits")) == 1


def test_without_max_tokens_an_answer_goes_to_the_end_of_the_context() -> None:
    desk = Desk(LIMITS).run(ask("a", prompt=350, max_tokens=None))
    assert len(desk.said("a")) == 50
    assert desk.finished["a"].reason is FinishReason.LENGTH


def test_a_long_prompt_stalls_other_rows_by_one_slice_at_most() -> None:
    desk = Desk(LIMITS).submit(ask("a", max_tokens=60))
    desk.until(lambda: desk.said("a"))
    desk.submit(ask("b", prompt=150), ask("c", prompt=50))
    while desk.count(Status.PREFILL) or desk.scheduler.queue.waiting:
        plan = desk.step()
        assert prefilled(plan) <= LIMITS.prefill_slice
        assert 1 in sampled(plan), "a step without a token for the row that decodes"
    desk.run()


@pytest.mark.parametrize(
    ("prompt", "chunks"), [(100, [32, 32, 32]), (104, [32, 32, 32]), (105, [32, 32, 32, 8])]
)
def test_alone_a_prompt_is_read_in_large_chunks_but_for_a_tail(
    prompt: int, chunks: list[int]
) -> None:
    """The first decode window reads 8 tokens, or one where more are left."""
    desk = Desk(LIMITS).run(ask("a", prompt=prompt))
    assert [n for n in map(prefilled, desk.plans) if n] == chunks
    done = [e.done for e in desk.events if isinstance(e, PrefillProgress)]
    assert done == [32, 64, 96, 104][: len(chunks)]


@pytest.mark.parametrize(("first", "read"), [(5, [(1, 4), (2, 4)]), (11, [(1, 10)])])
def test_prompts_share_a_step_in_order_up_to_a_slice(first: int, read: object) -> None:
    desk = Desk(LIMITS).submit(ask("a", prompt=first), ask("b", prompt=50))
    plan = desk.step()
    assert [(window.row, window.width) for window in plan.windows] == read


@pytest.mark.parametrize("company", [0, 2])
@pytest.mark.parametrize("window", [0, 4])
def test_known_ends_are_never_launched_over(company: int, window: int) -> None:
    desk = Desk(replace(LIMITS, num_draft_tokens=window), drafters=(Guess(),))
    desk.run(*(ask(f"r{i}", max_tokens=3 + i) for i in range(1 + company))).proven()
    widths: dict[int, int] = {}
    for launched in desk.windows:
        if launched.sample:
            widths[launched.row] = widths.get(launched.row, 0) + launched.draft_n + 1
    assert widths == {1 + i: 3 + i for i in range(1 + company)}


def test_plain_decode_keeps_one_step_in_flight() -> None:
    desk = Desk(LIMITS).run(ask("a", max_tokens=12), ask("b", max_tokens=12))
    overlapped = [window for window in desk.windows if window.sample and window.tokens == LAST]
    assert len(overlapped) >= 16


def test_rows_that_decode_together_share_one_forward() -> None:
    desk = Desk(LIMITS).run(*(ask(f"r{i}", max_tokens=6 + 4 * i) for i in range(3)))
    merged = chain.from_iterable(op.rows for op in desk.ops(Merge))
    assert sorted(merged) == [1, 2, 3]
    assert max(batch_sizes(desk)) == 3
    kept = [op.keep for op in desk.ops(Filter)]
    assert all(set(b) < set(a) for a, b in pairwise(kept))
    assert kept[-1] == ()


def test_a_merge_that_would_not_fit_is_refused_and_the_rows_take_turns() -> None:
    desk = Desk(replace(LIMITS, batch_bytes=180))
    desk.run(ask("a", prompt=5, max_tokens=40), ask("b", prompt=150, max_tokens=40)).proven()
    assert not desk.ops(Merge)
    together = [sampled(plan) for plan in desk.plans if len(sampled(plan)) == 2]
    assert len(together) >= 5


def test_rows_that_fit_merge_beside_one_that_does_not() -> None:
    desk = Desk(replace(LIMITS, batch_bytes=180))
    desk.run(ask("a", 5, 40), ask("b", 100, 40), ask("c", 6, 40)).proven()
    assert [op.rows for op in desk.ops(Merge)] == [(1, 3)]


def test_unbatchable_rows_run_one_after_another_within_a_step() -> None:
    desk = Desk(LIMITS, unbatchable=NO_MERGE).run(*(ask(f"r{i}", max_tokens=9) for i in range(3)))
    assert set(batch_sizes(desk)) == {1}
    assert max(len(sampled(plan)) for plan in desk.plans) == 3


@pytest.mark.parametrize(("traits", "lengths"), [(PLAIN, [5, 8]), (RECURRENT, [2, 2])])
def test_a_rejected_draft_is_taken_back_at_once_and_replayed_never(
    traits: object, lengths: list[int]
) -> None:
    desk = Desk(LIMITS, traits, drafters=(Guess(wrong=2),)).run(ask("a", max_tokens=9)).proven()
    rewinds = [op.length for op in desk.ops(Rewind)]
    assert rewinds[:2] == lengths
    assert min(window.width for window in desk.windows) > 0


def test_cancelling_frees_the_row_for_the_next_request() -> None:
    desk = Desk(replace(LIMITS, max_rows=1)).submit(ask("a", max_tokens=None), ask("b"))
    for _ in range(5):
        desk.step()
    desk.scheduler.cancel("a")
    desk.step()
    desk.step()
    assert desk.finished["a"].reason is FinishReason.CANCELLED
    desk.run().proven("b")


@pytest.mark.parametrize(("before", "after"), list(product(Status, Status)))
def test_lifecycle_moves_by_the_table_only(before: Status, after: Status) -> None:
    row = Row(1, ask("a"), [1], 5, Clock(0.0), status=before)
    if after in MOVES[before]:
        row.move(after)
        assert row.status is after
    else:
        with pytest.raises(ValueError, match=str(after)):
            row.move(after)
        assert row.status is before


def test_times_are_in_milliseconds() -> None:
    now = iter(range(1000))
    desk = Desk(replace(LIMITS, max_rows=1), clock=lambda: float(next(now)))
    desk.run(ask("a", max_tokens=3), ask("b", max_tokens=1))
    stats, other = desk.stats("a"), desk.stats("b")
    assert (stats.prompt_n, stats.predicted_n) == (3, 3)
    assert stats.prompt_ms > 0
    assert stats.predicted_ms >= 2000
    assert other.queue_ms > 0
    assert other.predicted_ms == 0


@pytest.mark.parametrize("seed", range(40))
def test_whatever_comes_and_goes_everybody_gets_their_own_answer(seed: int) -> None:
    chance = random.Random(seed)
    desk = Desk(
        replace(
            LIMITS,
            batch_bytes=chance.choice([200, 1 << 30]),
            prefix_bytes=200,
            block_tokens=8,
            max_waiting=99,
        ),
        chance.choice([PLAIN, RECURRENT]),
        chance.choice([(), (Guess(),), (Guess(wrong=1),), (Guess(wrong=4),)]),
        chance.choice([None, None, NO_MERGE]),
    )
    asked = [
        ask(f"r{i}", chance.choice([1, 2, 9, 90]), chance.choice([1, 2, 7, 30])) for i in range(12)
    ]
    cancelled = set()
    for one in asked:
        desk.submit(one)
        for _ in range(chance.choice([0, 1, 3, 20])):
            desk.step()
        if chance.random() < 0.2:
            desk.scheduler.cancel(one.id)
            cancelled.add(one.id)
    desk.run()
    assert not any(isinstance(event, Failed) for event in desk.events)
    for one in asked:
        n = desk.stats(one.id).predicted_n
        assert desk.said(one.id) == answer(one, n)
        assert n == one.max_tokens or one.id in cancelled
    assert not desk.device.single
    assert not desk.device.batch
    index = desk.scheduler.prefix.index
    assert {piece.id for piece in index.pieces} == set(desk.device.kept)
    assert index.nbytes <= 200


def test_only_the_scheduler_writes_to_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    writers: set[str] = set()
    write = Row.__setattr__

    def watched(row: Row, name: str, value: object) -> None:
        writers.add(sys._getframe(1).f_globals["__name__"])
        write(row, name, value)

    monkeypatch.setattr(Row, "__setattr__", watched)
    desk = Desk(LIMITS, RECURRENT, drafters=(Guess(wrong=2),))
    desk.run(*(ask(f"r{i}", prompt=40, max_tokens=9) for i in range(3)))
    desk.run(ask("alone", max_tokens=9))
    assert writers == {"omlx.engine.step.scheduler", "omlx.engine.step.row"}
