"""Priority: rows are given to urgent requests at once, others go on from their own tokens."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from omlx.engine.memory import MemoryGuard
from omlx.engine.step.plan import Open, Restore
from omlx.engine.step.priority import QUANTUM_S, STARVATION_S
from omlx.engine.step.row import Status
from omlx.engine.types import Limits, PrefillProgress, TokensCommitted
from tests.clock import Clock
from tests.engine.device import PLAIN, RECURRENT, Desk, ask

LIMITS = Limits(context_length=4000, max_rows=2, max_waiting=40, prefill_chunk=32, prefill_slice=8)
BACKGROUND = 10


def background(name: str, **more: object):
    return ask(name, priority=BACKGROUND, **more)


def names(desk: Desk) -> list[str]:
    """Return the requests whose tokens came, in order, each once in a row."""
    ids = [e.request_id for e in desk.events if isinstance(e, TokensCommitted)]
    return [name for i, name in enumerate(ids) if i == 0 or ids[i - 1] != name]


@pytest.mark.parametrize("traits", [PLAIN, RECURRENT], ids=["dense", "recurrent"])
def test_a_row_gives_way_at_once_and_goes_on_from_its_own_tokens(traits) -> None:
    desk = Desk(replace(LIMITS, block_tokens=4), traits)
    desk.submit(*(background(f"b{i}", prompt=20, max_tokens=60) for i in range(2)))
    desk.until(lambda: desk.said("b1"))
    desk.submit(ask("typed", prompt=5, max_tokens=4))
    desk.step()  # commits what is in flight, and opens the row
    running = {row.request.id for row in desk.scheduler.running}
    assert running == {"b0", "typed"}
    desk.run().proven()
    assert desk.stats("b1").displaced == 1
    assert desk.stats("b0").displaced == 0
    assert desk.ops(Restore), "its prefix was kept"


def test_a_displaced_row_reads_only_what_its_prefix_lacks() -> None:
    desk = Desk(replace(LIMITS, max_rows=1, block_tokens=4))
    desk.submit(background("slow", prompt=50, max_tokens=40))
    desk.until(lambda: len(desk.said("slow")) >= 10)
    before = len(desk.windows)
    desk.run(ask("typed", max_tokens=2)).proven()
    again = [w for w in desk.windows[before:] if w.row == 3]
    assert again[0].start >= 58


def test_equal_priorities_do_not_displace_each_other() -> None:
    desk = Desk(LIMITS).submit(*(background(f"b{i}", max_tokens=30) for i in range(2)))
    desk.until(lambda: desk.count(Status.DECODE) >= 2)
    desk.run(background("late", max_tokens=3))
    assert all(desk.stats(name).displaced == 0 for name in ("b0", "b1", "late"))


def test_the_most_urgent_request_that_waits_is_admitted_first() -> None:
    desk = Desk(replace(LIMITS, max_rows=1)).submit(ask("first", max_tokens=5))
    desk.step()
    order = [("low", 5), ("normal", 0), ("high", -3)]
    desk.run(*(ask(name, max_tokens=3, priority=priority) for name, priority in order))
    assert [name for name in names(desk) if name != "first"] == ["high", "normal", "low"]


def test_the_least_urgent_row_gives_way_and_of_several_the_newest() -> None:
    desk = Desk(replace(LIMITS, max_rows=3))
    rows = [ask("a", max_tokens=40, priority=1), ask("b", max_tokens=40, priority=7)]
    desk.submit(*rows, ask("c", max_tokens=40, priority=7))
    desk.until(lambda: desk.count(Status.DECODE) >= 3)
    desk.run(ask("typed", max_tokens=3))
    assert [desk.stats(name).displaced for name in "abc"] == [0, 0, 1]


def test_memory_is_made_by_rows_that_give_way() -> None:
    guard = MemoryGuard(limit=3000)
    limits = replace(LIMITS, max_rows=4, block_tokens=4, prefix_bytes=400)
    desk = Desk(limits, memory=guard)
    guard.used = lambda: desk.device.nbytes
    guard.join(desk.scheduler.memory_client)
    desk.submit(background("slow", prompt=1200, max_tokens=300))
    desk.until(lambda: len(desk.said("slow")) >= 5)
    desk.submit(ask("typed", prompt=1400, max_tokens=3)).until(lambda: desk.said("typed"))
    assert len(desk.said("slow")) < 300
    desk.run().proven()
    assert desk.stats("slow").displaced >= 1


def test_a_request_that_waited_long_is_next_and_keeps_its_row_for_a_while() -> None:
    clock = Clock(1.0)
    desk = Desk(replace(LIMITS, max_rows=1), clock=clock)
    desk.submit(ask("t0", max_tokens=8), background("slow", max_tokens=400))
    admitted: list[float] = []
    for i in range(1, 40):  # one typed request after another: there is always one that waits
        desk.submit(ask(f"t{i}", max_tokens=8))
        for _ in range(12):
            clock.now += 0.5
            desk.step()
        if len(desk.said("slow")) and not admitted:
            admitted.append(clock.now)
    assert admitted
    assert admitted[0] <= 1.0 + STARVATION_S + QUANTUM_S
    assert 0 < len(desk.said("slow")) < 400, "and it gave way again"


@pytest.mark.parametrize("prefix_bytes", [0, 1 << 20])
def test_pauses_between_urgent_requests_do_not_begin_the_wait_again(prefix_bytes: int) -> None:
    """A pause is a step in which the row is free; the prompt takes ten."""
    clock = Clock(1.0)
    limits = replace(LIMITS, max_rows=1, block_tokens=4, prefix_bytes=prefix_bytes)
    desk = Desk(limits, clock=clock)
    desk.submit(ask("t", max_tokens=8), background("slow", prompt=300, max_tokens=4))
    typed = 0
    until = clock.now + 2 * STARVATION_S
    while not desk.said("slow"):
        clock.now += 0.5
        assert clock.now < until, typed
        desk.step()
        if desk.scheduler.running and desk.scheduler.running[0].request.id == "slow":
            typed += 1
            desk.submit(ask(f"t{typed}", max_tokens=8))
    desk.run().proven()


def test_one_starving_request_at_a_time_precedes_urgent_ones() -> None:
    clock = Clock(1.0)
    desk = Desk(replace(LIMITS, max_rows=2), clock=clock)
    desk.submit(*(ask(f"t{i}", max_tokens=60) for i in range(2)))
    desk.step()
    desk.submit(*(background(f"b{i}", max_tokens=50) for i in range(4)))
    clock.now += 2 * STARVATION_S
    desk.submit(*(ask(f"u{i}", max_tokens=5) for i in range(3))).until(lambda: desk.said("u2"))
    begun = [name for name in ("b0", "b1", "b2", "b3") if desk.said(name)]
    assert begun == ["b0"]
    desk.run()


@pytest.mark.parametrize("seed", range(3))
def test_many_requests_of_mixed_priority_all_say_their_answers(seed: int) -> None:
    chance = random.Random(seed)
    clock = Clock(1.0)
    desk = Desk(replace(LIMITS, max_rows=3, block_tokens=4), clock=clock)
    asked = [
        ask(
            f"r{seed}-{i}",
            prompt=chance.randint(1, 60),
            max_tokens=chance.randint(1, 40),
            priority=chance.choice((-1, 0, 0, 3, BACKGROUND)),
        )
        for i in range(30)
    ]
    waiting = list(asked)
    for _ in range(3000):
        if waiting and chance.random() < 0.2:
            desk.submit(waiting.pop())
        clock.now += chance.random()
        desk.step()
        if not waiting and not desk.scheduler.has_work:
            break
    desk.run().proven()
    assert sum(desk.stats(one.id).displaced for one in asked) > 0
    for one in asked:  # each prompt is reported once, and never backwards
        done = [e.done for e in desk.events if _is_progress(e, one.id)]
        assert all(a <= b for a, b in pairwise(done)) or desk.stats(one.id).displaced


def _is_progress(event: object, name: str) -> bool:
    return isinstance(event, PrefillProgress) and event.request_id == name


def test_a_displaced_request_can_be_cancelled_while_it_waits() -> None:
    desk = Desk(replace(LIMITS, max_rows=1)).submit(background("slow", max_tokens=50))
    desk.until(lambda: len(desk.said("slow")) >= 5)
    desk.submit(ask("typed", max_tokens=20)).until(lambda: desk.said("typed"))
    desk.scheduler.cancel("slow")
    desk.run()
    assert desk.stats("slow").predicted_n == len(desk.said("slow"))


def test_a_short_prompt_passes_a_long_one_and_the_long_one_does_not_starve() -> None:
    desk = Desk(replace(LIMITS, max_rows=3, prefill_chunk=50, prefix_bytes=0))
    desk.submit(ask("long", prompt=1000, max_tokens=2))
    for _ in range(4):
        desk.step()
    shorts = [ask(f"s{i}", prompt=100, max_tokens=1) for i in range(39)]
    desk.run(*shorts)
    firsts = [e.request_id for e in desk.events if isinstance(e, TokensCommitted)]
    assert firsts[0] == "s0"
    assert firsts.index("long") <= 25, "a third of the time was the share of the long one"


def test_equal_prompts_are_read_one_after_the_other() -> None:
    """Each ends no later than with equal shares, and the first one earlier."""
    desk = Desk(replace(LIMITS, prefill_chunk=50))
    desk.run(*(ask(name, prompt=500, max_tokens=1) for name in "ab"))
    rows = [w.row for w in desk.windows if not w.sample]
    assert rows == sorted(rows)


def test_prompts_of_one_request_follow_one_another() -> None:
    desk = Desk(replace(LIMITS, max_rows=3, prefill_chunk=50))
    many = [replace(ask(f"m{i}", prompt=300, max_tokens=1), group="m") for i in range(2)]
    desk.run(*many, ask("one", prompt=400, max_tokens=1))
    assert [*desk.finished] == ["m0", "one", "m1"]


def test_only_the_most_urgent_prompts_are_read() -> None:
    desk = Desk(replace(LIMITS, prefill_chunk=50))
    desk.submit(background("slow", prompt=400, max_tokens=1))
    desk.step()
    desk.submit(ask("typed", prompt=120, max_tokens=1)).until(lambda: desk.said("typed"))
    opened = [op.row for op in desk.ops(Open)]
    typed = [i for i, w in enumerate(desk.windows) if w.row == opened[1]]
    between = desk.windows[typed[0] : typed[-1]]
    assert {w.row for w in between} == {opened[1]}
    desk.run()


def test_less_urgent_prompts_do_not_starve_beside_urgent_ones() -> None:
    desk = Desk(replace(LIMITS, max_rows=4, prefill_chunk=50, prefix_bytes=0))
    desk.submit(background("slow", prompt=200, max_tokens=1))
    desk.step()
    desk.submit(ask("t0", prompt=500, max_tokens=1))
    typed = 1
    while not desk.said("slow"):
        desk.step()
        if desk.count(Status.PREFILL) < 3:  # an urgent prompt is always to be read
            assert typed < 40
            desk.submit(ask(f"t{typed}", prompt=500, max_tokens=1))
            typed += 1
    assert typed > 4, "it had a small part of the time"
    desk.run()


def test_a_prefill_without_an_answer_gives_its_row_away_and_goes_on() -> None:
    desk = Desk(replace(LIMITS, max_rows=1, block_tokens=4))
    desk.submit(background("ahead", prompt=1000, max_tokens=0))
    for _ in range(4):
        desk.step()
    desk.submit(ask("typed", max_tokens=2)).until(lambda: desk.said("typed"))
    assert "ahead" not in desk.finished
    desk.run()
    assert (desk.stats("ahead").displaced, desk.stats("ahead").predicted_n) == (1, 0)
    again = [w for w in desk.windows if w.row == 3]
    assert again[0].start > 0, "its prefix was kept"
