"""Cached prefixes: a hit gives the same tokens as a cold start; `cached_n` says what it saved."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest

from omlx.engine.piece import Layout
from omlx.engine.prefix.reuse import BRANCH_TOKENS
from omlx.engine.types import Request, Sampling
from tests.engine.fakes import Corrupted, Scripted
from tests.engine.harness import (
    FEW_HEATED,
    GREEDY,
    HEATED,
    KINDS,
    LIMITS,
    Bench,
    label,
    loop_of,
    model,
    noisy,
    plain,
    prompt,
    request,
    unassisted,
)
from tests.lanes import few
from tests.zoo import FAMILIES, MAIN_NAMES

BLOCK = LIMITS.block_tokens
RESUMING_AT_POINTS = [
    name for name in KINDS if FAMILIES[name].tags & {"sliding", "recurrent", "chunked"}
]
"""Kinds of caches that go on only where their window or state was stored."""


def layout(family: str) -> Layout:
    return loop_of(family).scheduler.prefix.layout


def resumes_anywhere(family: str) -> bool:
    return layout(family).resumes_anywhere


def follows(of: Request, bench: Bench, *more: int, **changed: Any) -> Request:
    """The next turn of a conversation."""
    tokens = (*of.tokens, *bench.tokens[of.id], *(more or (5, 6, 7)))
    return request(f"{of.id}+", tokens, **{"sampling": of.sampling, "max_tokens": 12, **changed})


@pytest.mark.parametrize(("family", "sampling"), FEW_HEATED, ids=label)
def test_a_continued_conversation_says_what_a_cold_one_says(
    family: str, sampling: Sampling
) -> None:
    bench = Bench(loop_of(family, noisy(family)))
    tokens: tuple[int, ...] = prompt(13)
    for turn in range(3):
        one = request(f"t{turn}", tokens, sampling, max_tokens=18)
        bench.run(one).proven(family, one)
        stats = bench.stats(one.id)
        assert stats.speculation.code == "spec.on"
        if turn:
            before = stats.prompt_n - 3  # all but what the user added
            assert before - 6 <= stats.cached_n <= before
        tokens = (*tokens, *bench.tokens[one.id], 11, 12 + turn, 13)


EDGES = (5 * BLOCK - 1, 5 * BLOCK, 5 * BLOCK + 1, 5 * BLOCK + BLOCK // 2)


@pytest.mark.parametrize(
    ("family", "sampling", "common"),
    [
        pytest.param(*case, edge, marks=() if (i + j) % 14 == 0 else pytest.mark.slow)
        for i, case in enumerate(HEATED)
        for j, edge in enumerate(EDGES)
    ],
    ids=label,
)
def test_a_prompt_that_parts_at_the_edge_of_a_block_or_within(
    family: str, sampling: Sampling, common: int
) -> None:
    """A cache that resumes anywhere uses all that is common; another one what was kept at or below
    it.
    """
    bench = Bench(loop_of(family, noisy(family)))
    first = request("a", prompt(common + 9), sampling, max_tokens=6, stable=common)
    bench.run(first)
    parting = (*first.tokens[:common], (first.tokens[common] + 1) % 90, 8, 9)
    other = request("b", parting, sampling, max_tokens=20)
    bench.run(other).proven(family, other)
    assert bench.stats("b").cached_n == common


@pytest.mark.parametrize("family", few(KINDS, "llama", "gpt_oss", "nemotron_h"))
def test_a_conversation_that_turns_off_in_the_answer_uses_what_was_kept_below(family: str) -> None:
    bench = Bench(loop_of(family, noisy(family)))
    first = request("a", prompt(40), max_tokens=40, stable=36)
    bench.run(first)
    said = bench.tokens["a"]
    other = request("b", (*first.tokens, *said[:5], (said[5] + 1) % 90, 8), max_tokens=12)
    bench.run(other).proven(family, other)
    assert bench.stats("b").cached_n == (45 if resumes_anywhere(family) else 36)


@pytest.mark.parametrize(("family", "sampling"), FEW_HEATED, ids=label)
def test_an_identical_prompt_leaves_one_token_to_compute(family: str, sampling: Sampling) -> None:
    bench = Bench(loop_of(family, noisy(family)))
    for name in "abc":
        one = request(name, prompt(40), sampling, max_tokens=12)
        bench.run(one).proven(family, one)
        assert bench.stats(name).cached_n == (39 if name != "a" else 0)


@pytest.mark.parametrize("family", few(KINDS, "lfm2", "llama4"))
def test_what_a_cancelled_request_had_read_is_there_for_the_next(family: str) -> None:
    loop = loop_of(family, limits=replace(LIMITS, prefill_chunk=16))
    bench = Bench(loop).submit(request("a", prompt(60)))
    bench.until(lambda: bench.steps == 2)
    loop.cancel("a")
    bench.run(again := request("b", prompt(60), max_tokens=8)).proven(family, again)
    assert bench.stats("b").cached_n == 32


@pytest.mark.parametrize("family", few(KINDS, "gemma3_text", "qwen3_next"))
def test_kept_after_rejected_drafts_and_taken_up_in_a_batch(family: str) -> None:
    """One row hits, two are cold; all decode together."""
    loop = loop_of(family)
    loop.use_drafters([Corrupted(model(family), lambda position: position % 3 == 2)])
    bench = Bench(loop).run(first := request("a", prompt(21), max_tokens=25))
    assert bench.stats("a").proposed > bench.stats("a").accepted
    rows = [
        follows(first, bench),
        request("b", prompt(17, 1), max_tokens=9),
        request("c", prompt(5, 2), max_tokens=14),
    ]
    bench.run(*rows)
    assert bench.stats("a+").cached_n >= 21
    assert bench.stats("b").cached_n == bench.stats("c").cached_n == 0
    bench.proven(family, *rows)


@pytest.mark.parametrize("family", few(KINDS, "llama", "gpt_oss", "recurrent_gemma", "llama4"))
def test_a_whole_roll_back_at_the_wrap_then_a_single_token_then_a_hit(family: str) -> None:
    """Windows and chunks are 16 tokens: a draft over 32 is refused whole, and the next window has
    one token.
    """
    first = request("a", prompt(28), max_tokens=16)
    loop = loop_of(family)
    answer = plain(family, unassisted(first))
    loop.use_drafters([Scripted(28, answer, [2, 0, None, None, 0, None, 4])])
    bench = Bench(loop).run(first).proven(family, first)
    loop.use_drafters([])
    for salt in (1, 2):
        bench.run(more := follows(first, bench, salt, 3)).proven(family, more)
        assert bench.stats("a+").cached_n >= 28
        bench.finished.clear()
        bench.tokens.pop("a+")


@pytest.mark.parametrize("family", few(KINDS, "llama_concatenate", "qwen3_next"))
def test_a_block_that_was_lost_from_the_middle_is_computed_again(family: str) -> None:
    loop = loop_of(family)
    bench = Bench(loop).run(request("a", prompt(50), max_tokens=10, stable=20))
    index = loop.scheduler.prefix.index
    middle = next(
        piece for piece in index.pieces if piece.kind == "rows" and piece.start == 3 * BLOCK
    )
    loop.runner.caches.kept.evict(index.forget([middle.id]))
    index.check()
    assert {piece.id for piece in index.pieces} == set(loop.runner.caches.kept)
    again = request("b", prompt(50), max_tokens=10)
    bench.run(again, request("c", (*prompt(20), 1, 2, 3), max_tokens=10)).proven(family, again)
    assert bench.stats("b").cached_n == (3 * BLOCK if resumes_anywhere(family) else 20)
    assert bench.stats("c").cached_n == 20


@pytest.mark.parametrize("family", few(RESUMING_AT_POINTS, "gemma3_text", "lfm2", "llama4"))
def test_without_its_state_or_window_a_prefix_is_no_use_and_the_one_before_is(family: str) -> None:
    loop = loop_of(family)
    bench = Bench(loop).run(request("a", prompt(60), max_tokens=10, stable=20))
    index = loop.scheduler.prefix.index
    lost = [piece.id for piece in index.pieces if piece.kind != "rows" and piece.stop > 20]
    loop.runner.caches.kept.evict(index.forget(lost))
    bench.run(again := request("b", prompt(60), max_tokens=10)).proven(family, again)
    assert bench.stats("b").cached_n == 20


@pytest.mark.parametrize("family", few(RESUMING_AT_POINTS, "gpt_oss", "qwen3_next"))
def test_a_long_prompt_is_kept_at_intervals(family: str) -> None:
    limits = replace(LIMITS, context_length=4096, prefill_chunk=512)
    loop = loop_of(family, limits=limits)
    interval, long = loop.scheduler.prefix.layout.interval, prompt(1500)
    bench = Bench(loop, check=False).run(request("a", long, max_tokens=2, stable=1495))
    bench.run(other := request("b", (*long[:1300], 3, 4, 5), max_tokens=6)).proven(family, other)
    assert bench.stats("b").cached_n == (1024 if interval <= 512 else 0)


@pytest.mark.parametrize(
    "family",
    few(
        ("llama", "qwen3_next", "gemma3_text", "lfm2", "llama4", "recurrent_gemma"),
        "llama",
        "recurrent_gemma",
    ),
)
def test_the_draft_model_continues_from_its_own_cached_prefix(family: str) -> None:
    loop = loop_of(family, model(family))
    drafter = loop.scheduler.speculator.drafters[1]
    bench = Bench(loop).run(first := request("a", prompt(40), max_tokens=20, stable=36))
    bench.run(follow_up := follows(first, bench, max_tokens=20))
    stats = bench.stats("a+")
    assert stats.cached_n >= 55
    assert stats.accepted == stats.proposed > 10
    assert drafter._prefixes._index.counts.hit_tokens >= 50
    bench.proven(family, follow_up)
    bench.run(request("b", (*prompt(36), 1, 2, 3), max_tokens=20))
    assert drafter._prefixes._index.counts.hits == 2
    assert bench.stats("b").accepted == bench.stats("b").proposed > 10
    drafter.check()


def test_rows_of_a_batch_leave_conversations_too() -> None:
    rows = [request(f"{i}", prompt(8 + i, i), max_tokens=12 + i) for i in range(3)]
    bench = Bench(loop_of("qwen3_next")).run(*rows)
    for one in rows:
        bench.run(more := follows(one, bench, 2)).proven("qwen3_next", more)
        assert bench.stats(more.id).cached_n == len(more.tokens) - 2


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "qwen3_next"])
def test_two_requests_continue_one_conversation_at_once(family: str) -> None:
    bench = Bench(loop_of(family)).run(first := request("a", prompt(20), max_tokens=6))
    both = [replace(follows(first, bench, n), id=name) for name, n in (("b", 1), ("c", 2))]
    bench.run(*both).proven(family, *both)
    assert [bench.stats(one.id).cached_n for one in both] == [25, 25]


def test_a_prompt_that_is_still_answered_is_there_for_others() -> None:
    bench = Bench(loop_of("llama")).submit(request("a", prompt(40), max_tokens=60))
    bench.until(lambda: len(bench.tokens["a"]) > 3)
    bench.run(request("b", prompt(40), GREEDY, max_tokens=4))
    assert bench.stats("b").cached_n == 39


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "qwen3_next"])
def test_old_prefixes_make_room_and_their_arrays_go_with_them(family: str) -> None:
    room = 3 * layout(family).cache_bytes(56)
    loop = loop_of(family, limits=replace(LIMITS, prefix_bytes=room))
    bench = Bench(loop)
    asked = [request(f"{i}", prompt(40, i), max_tokens=4) for i in range(6)]
    for one in asked:
        bench.run(one)
        assert loop.runner.caches.kept.nbytes == loop.scheduler.prefix.index.nbytes <= room
    bench.run(follows(asked[5], bench), follows(asked[0], bench))
    assert bench.stats("5+").cached_n == 43
    assert bench.stats("0+").cached_n < 40
    loop.clear_prefixes()
    bench.run()
    assert not len(loop.runner.caches.kept)
    assert loop.runner.caches.nbytes == 0


@pytest.mark.parametrize("family", ["llama", "qwen3_next"])
def test_without_room_nothing_is_kept_and_the_report_says_so(family: str) -> None:
    loop = loop_of(family, limits=replace(LIMITS, prefix_bytes=10))
    bench = Bench(loop).run(one := request(max_tokens=4))
    assert not len(loop.runner.caches.kept)
    report = loop.snapshot().prefix
    assert report.asked == report.refused == 2
    bench.run(follows(one, bench))
    assert bench.stats("a+").cached_n == 0
    none = loop_of(family, limits=replace(LIMITS, prefix_bytes=0)).snapshot().prefix
    assert none.off.code == "prefix.off.no_room"


@pytest.mark.parametrize("family", KINDS)
def test_a_cache_resumes_anywhere_or_at_points(family: str) -> None:
    assert resumes_anywhere(family) == (family not in RESUMING_AT_POINTS)


def test_families_cover_every_kind_of_cache() -> None:
    kinds = "attention sliding recurrent chunked mla quantized_kv concatenate wrapper"
    assert set(kinds.split()) <= set().union(*(FAMILIES[name].tags for name in MAIN_NAMES))


@pytest.mark.slow
@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in (*KINDS, "jamba")])
def test_every_other_architecture_says_after_a_hit_what_it_says_cold(family: str) -> None:
    loop = loop_of(family)
    bench = Bench(loop).run(first := request("a", prompt(40), max_tokens=8, stable=36))
    more = request("b", (*prompt(36), 1, 2, 3), max_tokens=8)
    for one in (follows(first, bench, max_tokens=8), more, replace(first, id="c")):
        bench.run(one).proven(family, one)
        assert bench.stats(one.id).cached_n >= (
            36 if loop.scheduler.prefix.off_reason is None else 0
        )


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "qwen3_next", "gemma3_text"])
def test_ten_thousand_requests_do_not_make_the_process_grow(family: str) -> None:
    """Over 300 shared prefixes, with room for some of them."""
    room = 40 * layout(family).cache_bytes(64)
    loop = loop_of(
        family, limits=replace(LIMITS, prefix_bytes=room, block_tokens=16, max_waiting=99)
    )
    chance = random.Random(3)
    index, kept, hits, base = loop.scheduler.prefix.index, loop.runner.caches.kept, 0, 0
    for i in range(10_000):
        salt = min(299, int(chance.expovariate(1 / 40)))
        tokens = (*prompt(36, salt), chance.randrange(90), chance.randrange(90), 5, 6)
        bench = Bench(loop, check=False).run(request("a", tokens, max_tokens=1, stable=36))
        hits += bench.stats("a").cached_n >= 36
        index.check()
        assert kept.nbytes == index.nbytes <= room
        if i == 500:
            base = mx.get_active_memory()
    mx.clear_cache()
    assert mx.get_active_memory() <= base + room
    assert hits > 2_000


@pytest.mark.parametrize("family", few(KINDS, "llama_quantized", "recurrent_gemma", "falcon_h1"))
def test_the_choices_of_a_request_share_one_prefill(family: str) -> None:
    """Further choices wait for the prefix of the first one; their tokens are those alone."""
    tokens = prompt(43)
    choices = [
        request(f"c{i}", tokens, Sampling(0.8, seed=3, choice=i), max_tokens=6) for i in range(3)
    ]
    bench = Bench(loop_of(family, limits=replace(LIMITS, prefill_chunk=16))).run(*choices)
    bench.proven(family, *choices)
    prefilled = [window.width for window in bench.windows if not window.sample]
    assert sum(prefilled) == len(tokens) - 1 or not layout(family).resumes_anywhere
    assert sum(prefilled) < 2 * len(tokens)
    assert [bench.stats(one.id).cached_n > 0 for one in choices] == [False, True, True]


@pytest.mark.parametrize("family", few(RESUMING_AT_POINTS, "gemma3_text", "falcon_h1", "llama4"))
def test_the_third_prompt_that_parts_in_a_beginning_computes_what_is_behind(family: str) -> None:
    """The second has a state saved before the parting, so a word there costs no more than the rest.

    A prompt that parts a little earlier, in the same word, is served by the same state.
    """
    bench, beginning = Bench(loop_of(family)), prompt(160)
    for number, part in enumerate((150, 150, 150, 145)):
        tokens = (*beginning[:part], number + 1, *prompt(40, salt=3), 7 + number)
        one = request(f"{number}", tokens, max_tokens=6)
        bench.run(one).proven(family, one)
        if number > 1:
            assert part - BRANCH_TOKENS - BLOCK - 5 <= bench.stats(one.id).cached_n <= part
