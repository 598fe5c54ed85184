"""Conversations kept and continued: the same tokens as cold, and `cached_n` says what was saved."""

from __future__ import annotations

from dataclasses import replace

import pytest

from omlx.engine.limits import Traits
from omlx.engine.rewind import traits
from omlx.engine.store import ConversationStore, Match
from omlx.engine.types import Request, Sampling
from tests import zoo
from tests.engine.harness import HEATED, KINDS, LIMITS, Bench, label, loop_of, model, noisy, plain, prompt, request
from tests.zoo import FAMILIES, MAIN_NAMES

PLAIN = Traits(recurrent=False, sliding_window=None, unsupported=())


def rewindable(family: str) -> bool:
    """Whether a cache of more tokens than any window goes back at will."""
    found = traits(zoo.make_cache(model(family)))
    return not found.recurrent and found.sliding_window is None


@pytest.mark.parametrize(("family", "sampling"), HEATED, ids=label)
def test_a_continued_conversation_says_what_a_cold_one_says(family: str, sampling: Sampling) -> None:
    bench = Bench(loop_of(family, noisy(family)))
    tokens: tuple[int, ...] = prompt(13)
    for turn in range(3):
        one = request(f"t{turn}", tokens, sampling, max_tokens=18)
        bench.run(one)
        assert bench.tokens[one.id] == plain(family, one), turn
        stats = bench.stats(one.id)
        assert stats.speculation.code == "spec.on"
        if turn:
            before = stats.prompt_n - 3  # all but what the user added
            assert before - 6 <= stats.cached_n <= before
        tokens = (*tokens, *bench.tokens[one.id], 11, 12 + turn, 13)


@pytest.mark.parametrize("family", KINDS)
def test_a_conversation_that_turns_off_uses_the_common_part_where_the_cache_can_go_back(family: str) -> None:
    bench = Bench(loop_of(family, noisy(family)))
    first = request("a", prompt(40), max_tokens=12)
    bench.run(first)
    common = 45
    other = request("b", (*first.tokens, *bench.tokens["a"][:5], (bench.tokens["a"][5] + 1) % 90, 8), max_tokens=12)
    bench.run(other)
    assert bench.tokens["b"] == plain(family, other)
    assert bench.stats("b").cached_n == (common if rewindable(family) else 0)


@pytest.mark.parametrize("family", KINDS)
def test_an_identical_prompt_leaves_one_token_to_compute(family: str) -> None:
    bench = Bench(loop_of(family, noisy(family)))
    first, again = request("a", prompt(40), max_tokens=12), request("b", prompt(40), max_tokens=12)
    bench.run(first).run(again)
    assert bench.tokens["a"] == bench.tokens["b"] == plain(family, first)
    assert bench.stats("b").cached_n == (39 if rewindable(family) else 0)


def test_a_sliding_window_that_has_not_wrapped_goes_back() -> None:
    bench = Bench(loop_of("gemma3_text"))
    first, again = request("a", prompt(9), max_tokens=4), request("b", prompt(9), max_tokens=20)
    bench.run(first).run(again)
    assert bench.stats("b").cached_n == 8
    assert bench.tokens["b"] == plain("gemma3_text", again)


@pytest.mark.parametrize("family", ["llama", "qwen3_next", "gemma3_text", "lfm2"])
def test_the_draft_goes_on_from_what_it_had_read(family: str) -> None:
    loop = loop_of(family, model(family))
    bench = Bench(loop).run(request("a", prompt(13), max_tokens=20))
    follow_up = request("b", (*prompt(13), *bench.tokens["a"], 9, 9), max_tokens=20)
    bench.run(follow_up)
    stats = bench.stats("b")
    assert stats.cached_n >= 30
    assert stats.draft_n_accepted == stats.draft_n > 10


def test_rows_of_a_batch_leave_conversations_too() -> None:
    rows = [request(f"{i}", prompt(8 + i, i), max_tokens=12 + i) for i in range(3)]
    bench = Bench(loop_of("qwen3_next")).run(*rows)
    for one in rows:
        more = request(one.id + "+", (*one.tokens, *bench.tokens[one.id], 2), max_tokens=8)
        bench.run(more)
        assert bench.stats(more.id).cached_n == len(more.tokens) - 2
        assert bench.tokens[more.id] == plain("qwen3_next", more)


def test_old_entries_go_by_count_and_their_caches_with_them() -> None:
    loop = loop_of("llama", model("llama"), limits=replace(LIMITS, store_entries=2))
    bench = Bench(loop)
    asked = [request(f"{i}", prompt(10, i), max_tokens=4) for i in range(4)]
    for one in asked:
        bench.run(one)
        assert len(loop.runner.caches.stored) <= 2
    bench.run(extended(bench, asked[0]), extended(bench, asked[3]))
    assert bench.stats("0+").cached_n == 0
    assert bench.stats("3+").cached_n == 13


def test_an_entry_over_the_byte_limit_is_not_kept() -> None:
    loop = loop_of("llama", limits=replace(LIMITS, store_bytes=10))
    bench = Bench(loop).run(request(max_tokens=4))
    assert not loop.runner.caches.stored
    assert loop.runner.caches.nbytes == 0
    bench.run(extended(bench, request(max_tokens=4)))
    assert bench.stats("a+").cached_n == 0


def test_two_requests_that_extend_one_conversation_do_not_share_its_cache() -> None:
    bench = Bench(loop_of("llama")).run(request("a", prompt(20), max_tokens=6))
    both = [request(name, (*prompt(20), *bench.tokens["a"], n), max_tokens=9) for name, n in (("b", 1), ("c", 2))]
    bench.run(*both)
    assert sorted(bench.stats(name).cached_n for name in "bc") == [0, 25]
    for one in both:
        assert bench.tokens[one.id] == plain("llama", one)


def extended(bench: Bench, one: Request) -> Request:
    return request(one.id + "+", (*one.tokens, *bench.tokens[one.id], 5, 6), max_tokens=4)


def test_store_finds_the_longest_and_takes_no_long_conversation_for_a_short_start() -> None:
    store = ConversationStore(PLAIN, 8, 1 << 20)
    long, _ = store.put(list(range(100)), 1)
    short, _ = store.put(list(range(10)), 1)
    assert store.match([*range(10), 77, 78]) == Match(short, 10)
    assert store.match([*range(60), 77]) == Match(long, 60)
    assert store.match([*range(100), 5]) == Match(long, 100)
    assert store.match([0, 1, 77]) is None
    assert store.match([77]) is None
    store.take(long)
    assert store.match([*range(60), 77]) == Match(short, 10)


def test_store_evicts_the_oldest_by_bytes() -> None:
    store = ConversationStore(PLAIN, 8, 100)
    first, _ = store.put([1], 60)
    second, evicted = store.put([2], 40)
    assert evicted == []
    third, evicted = store.put([3], 50)
    assert evicted == [first]
    assert store.nbytes == 90
    fourth, evicted = store.put([4], 101)
    assert evicted == [second, third, fourth]
    assert store.nbytes == 0


@pytest.mark.parametrize("recurrent", [True, False])
def test_store_asks_for_an_exact_extension_where_nothing_goes_back(recurrent: bool) -> None:
    store = ConversationStore(replace(PLAIN, recurrent=recurrent, sliding_window=None if recurrent else 16), 8, 100)
    entry, _ = store.put(list(range(20)), 1)
    assert store.match([*range(20), 7]) == Match(entry, 20)
    assert store.match(list(range(20))) is None
    assert store.match([*range(19), 77]) is None


def test_families_cover_every_kind_of_cache() -> None:
    tags = set().union(*(FAMILIES[name].tags for name in MAIN_NAMES))
    assert {"attention", "sliding", "recurrent", "chunked", "mla", "quantized_kv", "concatenate", "wrapper"} <= tags
