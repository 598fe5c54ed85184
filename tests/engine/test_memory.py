"""Admission under a memory limit: what fits is never refused, and a refusal says what would fit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain

import pytest

from omlx.engine.memory import SOFT, MemoryGuard, Verdict, check_fits
from omlx.engine.piece import Layout
from omlx.engine.speculation.drafters.ngram import NgramDrafter
from omlx.engine.step.model_memory import cache_need, moved_bytes, reserved_tokens
from omlx.engine.step.plan import Extract
from omlx.engine.step.row import Clock, Row
from omlx.engine.types import Failed
from omlx.errors import BadRequest, Overloaded
from tests.engine.device import PLAIN, Desk, ask
from tests.engine.harness import KINDS, LIMITS, Bench, loop_of, prompt, request
from tests.lanes import few
from tests.refusals import refused

LAYOUT = Layout(row_bytes=100)
ROOMY = replace(
    LIMITS, context_length=1 << 20, prefix_bytes=1 << 30, prefill_chunk=1 << 20, max_rows=8
)


def guard(limit: int, weights: int = 0) -> MemoryGuard:
    return MemoryGuard(limit, lambda: 0, weights)


def test_without_a_limit_everything_fits() -> None:
    free = MemoryGuard()
    check_fits(free, ask("a", prompt=10_000), LAYOUT)
    assert free.excess(1 << 50, ()) == 0


def test_freed_memory_that_still_counts_is_returned_before_a_request_exceeds_the_limit() -> None:
    used = [900]

    def trim() -> None:
        used[0] = 300

    short_of_memory = MemoryGuard(1000, lambda: used[0], trim=trim)
    assert short_of_memory.excess(500, ()) == 0
    assert short_of_memory.excess(600, ()) == 50


def test_a_prompt_that_can_never_fit_is_refused_with_the_longest_possible_length() -> None:
    short_of_memory = guard(1_000_000)
    with refused(BadRequest, "memory.never") as caught:
        check_fits(short_of_memory, ask("a", prompt=10_000), LAYOUT)
    most = caught.value.params["most"]
    check_fits(short_of_memory, ask("a", prompt=most - 256), LAYOUT)
    with pytest.raises(BadRequest):
        check_fits(short_of_memory, ask("a", prompt=most + 257), LAYOUT)


@dataclass
class Client:
    """A model that holds nothing."""

    busy: bool = False
    used_at: float = 0.0
    reserved: int = 0
    activations: int = 0
    cached: int = 0
    freeing: bool = False
    blocked_since: float | None = None

    def evict_prefixes(self, nbytes: int) -> int:
        return 0


def test_a_small_prompt_is_always_admitted_alone() -> None:
    tiny = guard(1000, weights=5000)
    one = ask("a", prompt=200)
    check_fits(tiny, one, LAYOUT)
    assert tiny.admit(Client(), one, cache_need(one, LAYOUT), 0.0) is Verdict.ADMIT


@pytest.mark.parametrize(
    ("excess", "busy", "verdict"),
    [
        (0, True, Verdict.ADMIT),
        (100, True, Verdict.WAIT_FOR_CHANGE),
        (100, False, Verdict.ADMIT),
        (101, False, Verdict.REFUSE),
    ],
)
def test_between_the_limits_a_request_may_run_alone_and_above_them_none(
    excess: int, busy: bool, verdict: Verdict
) -> None:
    memory, one = guard(1000), ask("a", prompt=1000)
    assert memory.admit(Client(busy), one, memory.soft + excess, 0.0) is verdict


def test_a_refusal_says_what_was_needed_and_when_to_retry() -> None:
    refusal = guard(1000).refusal(5 << 20)
    assert refusal.params["need"] == 5
    assert refusal.retry_after_s > 0


def test_a_text_that_is_no_request_waits_for_evicted_prefixes_only() -> None:
    need = LAYOUT.cache_bytes(1024)  # of 1,000 tokens, in the steps of a KV cache

    @dataclass
    class Caching(Client):
        def evict_prefixes(self, nbytes: int) -> int:
            freed, self.cached = min(nbytes, self.cached), 0
            self.freeing = freed > 0
            return freed

    memory, client = guard(4 * need), Caching(cached=10)
    memory.join(client)
    room = memory.soft - need
    memory.used = lambda: room
    assert memory.admit_text(1000, LAYOUT)
    assert client.cached == 10  # nothing was evicted for a text that fits
    room += 5
    assert not memory.admit_text(1000, LAYOUT)
    assert client.cached == 0
    assert not memory.admit_text(1000, LAYOUT)  # the next step frees them
    client.freeing = False
    assert memory.admit_text(1000, LAYOUT)  # below the hard limit
    room += memory.hard
    with refused(Overloaded, "memory.full"):
        memory.admit_text(1000, LAYOUT)
    assert memory.admit_text(512, LAYOUT)  # small ones always are


def test_only_one_thread_may_write_to_the_guard() -> None:
    memory = guard(1000)
    memory.changed()
    with ThreadPoolExecutor(1) as other, pytest.raises(AssertionError, match="one writing thread"):
        other.submit(memory.changed).result()


def desk(limit: int, elsewhere: int = 0) -> tuple[Desk, MemoryGuard]:
    memory = guard(limit)
    desk = Desk(ROOMY, PLAIN, memory=memory, elsewhere=elsewhere)
    memory.join(desk.scheduler.memory_client)
    memory.used = lambda: desk.device.nbytes
    return desk, memory


def test_three_that_fit_only_in_turn_are_answered_in_turn() -> None:
    at_work, _ = desk(4000)  # a token takes a byte here: each needs some 2,300
    at_work.submit(*(ask(name, prompt=2000, max_tokens=20) for name in "bcd"))
    most = 0
    while at_work.scheduler.has_work:
        at_work.step()
        most = max(most, len(at_work.scheduler.running))
    assert most == 1
    at_work.proven()


def test_kept_prefixes_make_room_before_anybody_waits() -> None:
    at_work, memory = desk(10_000)
    for name in "bcd":
        at_work.run(ask(name, prompt=2000, max_tokens=20))
    assert at_work.scheduler.prefix.index.nbytes > 6000
    memory.limit = 5000
    at_work.run(ask("e", prompt=2000, max_tokens=20)).proven()
    assert memory.used() < 5000


def test_a_lowered_limit_lets_running_requests_end_and_refuses_new_ones() -> None:
    at_work, memory = desk(100_000)
    at_work.submit(ask("b", prompt=2000, max_tokens=50)).step()
    memory.limit = 2500
    ours = memory.used
    memory.used = lambda: 2400 + ours()  # something else of this process takes that
    at_work.run(ask("c", prompt=1500, max_tokens=20)).proven("b")
    (refusal,) = [event for event in at_work.events if isinstance(event, Failed)]
    assert refusal.request_id == "c"
    assert isinstance(refusal.error, Overloaded)
    assert refusal.error.code == "memory.full"
    memory.used = ours
    at_work.run(ask("d", prompt=1500, max_tokens=20)).proven("d")


def test_who_gives_up_waiting_for_memory_lets_the_next_one_try() -> None:
    at_work, _ = desk(6100)  # for two rows and a copy of the larger one
    at_work.submit(ask("b", prompt=2000, max_tokens=99)).step()
    at_work.submit(ask("c", prompt=2000), ask("d", prompt=20)).step()
    at_work.scheduler.cancel("c")
    while not at_work.said("d"):
        assert len(at_work.said("b")) < 60
        at_work.step()
    at_work.run()


class Shared:
    """Two models under one guard that take turns, one step each, as on the engine thread."""

    def __init__(self, limit: int) -> None:
        self._time = 0.0
        self.memory = guard(limit)
        self.desks = [Desk(ROOMY, PLAIN, clock=self.now, memory=self.memory) for _ in range(2)]
        self.asked: list[int] = []
        self.most = 0
        self.admitted: list[str] = []
        for each in self.desks:
            self.memory.join(each.scheduler.memory_client)
        self.memory.used = lambda: sum(desk.device.nbytes for desk in self.desks)

    def now(self) -> float:
        self._time += 1
        return self._time

    def run(self) -> None:
        for _ in range(5000):
            busy = [each for each in self.desks if each.busy]
            for each in busy:
                each.step()
                rows = chain.from_iterable(desk.scheduler.running for desk in self.desks)
                running = [row.request.id for row in rows]
                self.most = max(self.most, len(running))
                self.admitted += [name for name in running if name not in self.admitted]
            if not busy:
                return
        raise AssertionError("the schedulers do not come to an end")


def test_models_take_turns_where_their_prompts_fit_only_one_at_a_time() -> None:
    shared = Shared(4000)
    first, second = shared.desks
    for name, at_work in zip("bcde", (first, second, first, second), strict=True):
        at_work.submit(ask(name, prompt=2000, max_tokens=20))
    shared.run()
    assert shared.most == 1
    for at_work in shared.desks:
        at_work.proven()


def test_who_came_first_is_not_overtaken_by_small_ones_of_another_model() -> None:
    shared = Shared(4000)
    first, second = shared.desks
    first.submit(ask("b", prompt=2000, max_tokens=40)).step()
    second.submit(ask("c", prompt=2000, max_tokens=20)).step()
    first.submit(*(ask(f"small-{i}", prompt=200, max_tokens=20) for i in range(20)))
    shared.run()
    second.proven("c")
    assert shared.admitted == ["b", "c", *(f"small-{i}" for i in range(20))]


def test_prefixes_of_the_model_that_was_used_longest_ago_go_first() -> None:
    shared = Shared(10_000)
    first, second = shared.desks
    for at_work, name in ((first, "b"), (second, "c"), (first, "d")):
        at_work.submit(ask(name, prompt=2000, max_tokens=20))
        shared.run()
    before = first.scheduler.prefix.index.nbytes
    second.submit(ask("e", prompt=1500, max_tokens=20))
    first.submit(ask("f", prompt=2000, max_tokens=20))
    shared.run()
    first.proven("f")
    second.proven("e")
    shared.memory.limit = 6000
    second.submit(ask("g", prompt=2000, max_tokens=20))
    shared.run()
    second.proven("g")
    assert first.scheduler.prefix.index.nbytes < before
    assert shared.memory.used() < 6000


def beside_an_idle_model() -> tuple[Shared, Desk]:
    """A model whose requests fit once another has left."""
    shared = Shared(4000)
    first, _ = shared.desks
    shared.memory.request_eviction = shared.asked.append
    shared.memory.weights, first.scheduler.queue.pinned_weights = 2000, 0
    return shared, first


def test_who_waits_for_an_idle_model_to_leave_gives_the_engine_nothing_to_do() -> None:
    shared, first = beside_an_idle_model()
    first.submit(ask("b", prompt=2000, max_tokens=20))
    shared.run()
    assert len(shared.asked) == 1
    assert not first.scheduler.has_work
    assert not first.said("b")
    shared.memory.weights = 0  # it has left
    shared.memory.eviction_done()
    shared.run()
    first.proven("b")
    assert len(shared.asked) == 1


def test_where_no_model_can_leave_a_request_is_refused_and_the_next_one_asks_again() -> None:
    shared, first = beside_an_idle_model()
    for name in "bc":
        first.submit(ask(name, prompt=2000, max_tokens=20))
        shared.run()
        shared.memory.eviction_done()
        shared.run()
    refused = [event.request_id for event in first.events if isinstance(event, Failed)]
    assert refused == ["b", "c"]
    assert len(shared.asked) == 2


def test_weights_that_are_yet_to_be_read_have_their_place() -> None:
    shared = Shared(4000)
    first, _ = shared.desks
    assert shared.memory.reserve(4000) == 4000 - shared.memory.soft
    assert shared.memory.loading == 0
    assert shared.memory.reserve(3600, last=True) == 0
    first.submit(ask("b", prompt=2000, max_tokens=20))
    shared.run()
    assert [type(event) for event in first.events] == [Failed]
    shared.memory.loading = 0
    first.submit(ask("c", prompt=2000, max_tokens=20))
    shared.run()
    first.proven("c")


def test_the_limit_reaches_the_scheduler_of_a_real_model() -> None:
    memory = guard(0)
    loop = loop_of("llama", limits=replace(LIMITS, context_length=1 << 20), memory=memory)
    layout = loop.scheduler.prefix.layout
    assert layout.row_bytes == 3 * 2 * 2 * 16 * 4  # layers, keys and values, heads, width, float32
    memory.limit = layout.cache_bytes(4000)
    bench = Bench(loop)
    with pytest.raises(BadRequest):
        loop.submit(request("long", prompt(5000)))
    bench.run(one := request("a", prompt(300), max_tokens=4)).proven("llama", one)


def busiest(at_work: Desk, memory: MemoryGuard) -> int:
    """Run to the end. The most bytes that were taken after any step."""
    most = 0
    for _ in range(5000):
        if not at_work.scheduler.has_work:
            return most
        at_work.step()
        most = max(most, memory.used())
    raise AssertionError("the scheduler does not come to an end")


def test_cached_prefixes_count_beside_the_reservations_of_simultaneous_requests() -> None:
    at_work, memory = desk(12_000)
    at_work.run(ask("b", prompt=2000, max_tokens=20), ask("c", prompt=2000, max_tokens=20))
    assert at_work.scheduler.prefix.index.nbytes > 4000
    # 3,072 bytes each: three do not fit beside the cached prefixes.
    at_work.submit(*(ask(name, prompt=2700, max_tokens=20) for name in "efg"))
    assert busiest(at_work, memory) <= 0.95 * 12_000
    at_work.proven("e", "f", "g")


def test_prefixes_are_kept_within_what_memory_has_room_for() -> None:
    at_work, memory = desk(10_000)
    for name, prompt_len in (("h", 6500), ("i", 3000), ("j", 7000)):
        at_work.submit(ask(name, prompt=prompt_len, max_tokens=300))
        assert busiest(at_work, memory) <= 0.95 * 10_000
        at_work.proven(name)
    assert at_work.scheduler.prefix.index.nbytes > 2000


def test_a_rank_that_holds_more_of_each_cache_stays_within_its_memory_too() -> None:
    at_work, memory = desk(40_000, elsewhere=4)
    at_work.submit(*(ask(name, prompt, 200) for name, prompt in (("h", 3000), ("i", 2500))))
    assert 4 * busiest(at_work, memory) <= 0.95 * 40_000
    at_work.submit(ask("j", prompt=3000, max_tokens=200))
    assert 4 * busiest(at_work, memory) <= 0.95 * 40_000
    at_work.proven()
    assert at_work.scheduler.prefix.index.nbytes > 4 * 2000


def test_two_that_end_their_prompts_together_do_not_both_get_the_room() -> None:
    at_work, memory = desk(12_000)
    at_work.submit(ask("h", prompt=4800, max_tokens=20), ask("i", prompt=4800, max_tokens=20))
    assert busiest(at_work, memory) <= 0.85 * 12_000


def test_who_waits_for_one_that_asks_the_same_finds_what_that_one_left() -> None:
    at_work, _ = desk(12_000)
    # Two of them would take 10,240 bytes; the soft limit is 10,200.
    first = ask("h", prompt=5000, max_tokens=20)
    at_work.run(first, replace(first, id="again")).proven("again")
    assert at_work.stats("again").cached_n == 4999
    assert at_work.scheduler.prefix.index.counts.evicted.total() == 0


@pytest.mark.parametrize("family", few(KINDS, "recurrent_gemma", "llama4"))
def test_rows_of_every_kind_of_cache_take_turns_where_memory_is_short(family: str) -> None:
    """What the caches and the kept prefixes hold is counted while rows are opened, read, restored
    and joined.
    """
    memory = guard(0)
    loop = loop_of(family, limits=replace(LIMITS, prefill_chunk=64), memory=memory)
    layout, caches = loop.scheduler.prefix.layout, loop.runner.caches
    memory.limit = limit = int(2.2 * layout.cache_bytes(512))
    memory.used = lambda: caches.nbytes + caches.kept.nbytes
    loop.register()
    asked = [request(f"{i}", prompt(120 + 40 * (i % 3), i % 2), max_tokens=6) for i in range(6)]
    bench = Bench(loop).run(*asked)
    assert not bench.failed
    bench.proven(family, *asked)
    assert caches.kept.nbytes <= limit


def test_activations_count_in_what_fits_and_in_what_never_does() -> None:
    short_of_memory = guard(1_000_000)
    one = ask("a", prompt=8000)
    need = cache_need(one, LAYOUT)
    check_fits(short_of_memory, one, LAYOUT)
    assert short_of_memory.admit(Client(), one, need, 0.0) is Verdict.ADMIT
    assert short_of_memory.admit(Client(), one, need, 0.0, 100_000) is Verdict.ADMIT
    assert short_of_memory.admit(Client(), one, need, 0.0, 200_000) is Verdict.REFUSE
    assert short_of_memory.admit(Client(busy=True), one, need, 0.0, 200_000) is not Verdict.ADMIT
    reading = Client(busy=True, activations=200_000)
    assert short_of_memory.admit(reading, one, need, 0.0) is Verdict.WAIT_FOR_CHANGE

    def activations(context: int) -> int:
        return 50 * context

    with refused(BadRequest, "memory.never") as caught:
        check_fits(short_of_memory, one, LAYOUT, activations=activations)
    most = caught.value.params["most"]
    assert 150 * most <= 950_000 < 150 * most + 100 * 512
    check_fits(short_of_memory, ask("a", prompt=most), LAYOUT, activations=activations)
    short_of_memory.own = lambda: 300_000  # what the process holds beside arrays
    with pytest.raises(BadRequest):
        check_fits(short_of_memory, ask("a", prompt=most), LAYOUT, activations=activations)


def test_a_text_whose_only_pass_never_fits_is_refused_for_good() -> None:
    memory = guard(1_000_000)
    assert memory.admit_text(900, LAYOUT, lambda tokens: tokens * tokens)
    # 102,400 bytes of cache and 846,400
    with refused(BadRequest, "memory.never", most=920) as caught:
        memory.admit_text(1000, LAYOUT, lambda tokens: tokens * tokens)
    assert caught.value.param == "input"


def test_a_pass_has_what_is_neither_taken_nor_reserved() -> None:
    used = [500]

    def trim() -> None:
        used[0] = 400

    memory = MemoryGuard(1000, lambda: used[0], trim=trim)
    memory.join(Client(reserved=100))
    assert memory.pass_room(200) == 900 - 500 - 100
    assert memory.pass_room(400) == 900 - 400 - 100
    assert MemoryGuard().pass_room(1 << 50) is None


def test_cached_prefixes_make_up_for_what_a_pass_finds_above_the_soft_limit() -> None:
    evicted: list[int] = []

    class Caching(Client):
        def evict_prefixes(self, nbytes: int) -> int:
            evicted.append(nbytes)
            self.freeing = True
            return nbytes

    used = [750]
    memory = MemoryGuard(1000, lambda: used[0])
    memory.join(Caching(reserved=100))
    assert memory.pass_room(500) == 50
    assert evicted == []
    used[0] = 900
    assert memory.pass_room(500) == memory.pass_room(500) == -100
    assert evicted == [150]  # once: the next step frees them


def test_the_copy_of_the_largest_row_is_reserved_with_the_second_one() -> None:
    assert [moved_bytes(rows) for rows in ([], [7], [7, 5], [5, 7, 6])] == [0, 0, 7, 7]
    long, short = ask("c", prompt=2000), ask("b", prompt=20)
    alone, other = (cache_need(one, Layout(row_bytes=1)) for one in (long, short))
    for limit, together in ((2 * alone + other, True), (2 * alone + other - 1, False)):
        at_work, memory = desk(1)
        memory.limit = int(limit / SOFT) + 1
        memory.used = lambda: 0
        at_work.submit(long, short).step()
        assert (len(at_work.scheduler.running) == 2) is together


def test_records_of_states_are_reserved_with_a_row() -> None:
    for record_bytes, together in ((0, True), (1000, False)):
        at_work, memory = desk(1)
        prefix = at_work.scheduler.prefix
        prefix.layout = replace(prefix.layout, record_bytes=record_bytes)
        asked = [ask(name, prompt=20) for name in "bc"]
        memory.limit = int(3 * cache_need(asked[0], Layout(row_bytes=1)) / SOFT) + 1
        memory.used = lambda: 0
        at_work.submit(*asked).step()
        assert (len(at_work.scheduler.running) == 2) is together


def test_the_caches_of_drafters_are_reserved_until_they_hold_them() -> None:
    class Drafting(NgramDrafter):
        held_bytes = 0

        def cache_bytes(self, tokens: int) -> int:
            return tokens

    at_work, _ = desk(1_000_000)
    client, drafter = at_work.scheduler.memory_client, Drafting()
    row = Row(1, ask("c", prompt=2000), [0] * 2000, 3000, Clock(submitted=0.0))
    without = client.need(row)
    at_work.scheduler.speculator.drafters = [drafter]
    assert client.need(row) == without  # a row alone is not refused for its drafts
    at_work.submit(ask("c", prompt=2000)).step()
    beside = client.need(row)
    assert beside - without == reserved_tokens(row.request) + without  # with a copy of a row
    before = client.reserved
    drafter.held_bytes = 2000
    assert before - client.reserved == 2000


def test_a_row_leaves_its_batch_without_a_copy_where_there_is_no_room_for_one() -> None:
    at_work, memory = desk(100_000)
    at_work.submit(*(ask(name, 2000, 20 + 10 * i) for i, name in enumerate("bc")))
    at_work.until(lambda: len(at_work.scheduler.batch.members) >= 2)
    ours, stored = memory.used, at_work.scheduler.prefix.index.nbytes
    memory.used = lambda: 94_000 + ours() - stored
    at_work.until(lambda: at_work.finished)
    assert not at_work.ops(Extract)
    memory.used = ours
    at_work.run().proven()
