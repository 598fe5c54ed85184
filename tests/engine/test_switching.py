"""Speculation while one row decodes, a batch when a second one does; tokens stay the same."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from omlx.draft_length import DraftLength
from omlx.engine.build import build_loop
from omlx.engine.loop import EngineLoop
from omlx.engine.speculation.strategy import DRAFT, OFF
from omlx.engine.step.row import LINGER_STEPS
from omlx.engine.types import Speculation
from omlx.errors import Reason
from tests.engine.fakes import Corrupted, Counting, StuckCache
from tests.engine.harness import KINDS, LIMITS, Bench, loop_of, model, noisy, prompt, request
from tests.lanes import few

BATCHED = (
    "llama",
    "gemma3_text",
    "gpt_oss",
    "qwen3_next",
    "nemotron_h",
    "falcon_h1",
    "lfm2",
    "recurrent_gemma",
    "llama_quantized",
)
UNMERGEABLE = ("llama_concatenate", "llama4")


def half_right(family: str) -> tuple[EngineLoop, Corrupted]:
    loop = loop_of(family)
    drafter = Corrupted(model(family), lambda position: position % 5 == 2)
    loop.use_drafters([drafter])
    return loop, drafter


TOGETHER = tuple(name for name in BATCHED if name not in ("nemotron_h", "recurrent_gemma"))
"""The families whose rows draft while they share a batch."""


@pytest.mark.parametrize("family", few(BATCHED, every=3))
def test_switches_to_a_batch_within_two_steps_and_back_to_speculation(family: str) -> None:
    loop, drafter = half_right(family)
    bench = Bench(loop).submit(request("a", prompt(6), max_tokens=80))
    bench.until(lambda: len(drafter.accepted) >= 4)
    bench.submit(request("b", prompt(9, 2), max_tokens=6))
    bench.until(lambda: loop.request_counts.decoding == 2)
    begun = bench.steps
    bench.until(lambda: len(loop.runner.caches.members) == 2)
    assert bench.steps - begun <= 2
    rounds = len(drafter.accepted)
    bench.until(lambda: "b" in bench.finished)
    assert (len(drafter.accepted) > rounds) == (family in TOGETHER)
    rounds = len(drafter.accepted)
    left = bench.steps
    bench.until(lambda: not loop.runner.caches.members)
    assert bench.steps - left <= LINGER_STEPS + 3
    bench.until(lambda: sum(drafter.accepted[rounds:]) > 0)
    assert bench.steps - left <= LINGER_STEPS + 6
    bench.run().proven(family)
    assert sorted(drafter.accepted) == sorted(drafter.expected)
    assert bench.stats("a").speculation == Reason("spec.on")
    expected = "spec.on" if family in TOGETHER else "batch.off.uneven"
    assert bench.stats("b").speculation.code == expected


@pytest.mark.parametrize("family", UNMERGEABLE)
def test_an_unmergeable_model_serves_three_requests_at_once(family: str) -> None:
    loop, _ = half_right(family)
    assert loop.scheduler.batch.off_reason is not None
    rows = [request(name, prompt(8 + i, i), max_tokens=14 + 8 * i) for i, name in enumerate("abc")]
    bench = Bench(loop).submit(*rows)
    together = 0
    while loop.has_work:
        bench.step()
        together = max(together, loop.request_counts.decoding)
        assert not loop.runner.caches.members
    assert together == 3
    bench.proven(family, *rows)
    assert all(bench.drafted(one.id) > 0 for one in rows), "each drafts in a pass of its own"


@pytest.mark.parametrize("family", ["llama", "qwen3_next"])
def test_a_flapping_second_row_does_not_copy_caches_back_and_forth(family: str) -> None:
    first = request("a", prompt(6), max_tokens=90)
    bench = Bench(loop_of(family, model(family))).submit(first)
    bench.until(lambda: len(bench.tokens["a"]) > 4)
    splits = 0
    for i in range(5):
        short = request(f"b{i}", prompt(5, i), max_tokens=3)
        bench.submit(short).until(lambda name=short.id: name in bench.finished)
        splits += not bench.loop.runner.caches.members
    assert splits == 0
    bench.run().proven(family, first)


def test_a_prompt_that_only_prefills_does_not_end_speculation() -> None:
    loop, drafter = half_right("llama")
    loop.scheduler.planner.limits = replace(LIMITS, prefill_slice=8)
    long = request("b", prompt(100, 4), max_tokens=2)
    bench = Bench(loop).submit(request("a", prompt(6), max_tokens=80))
    bench.until(lambda: len(drafter.accepted) > 1)
    rounds = len(drafter.accepted)
    bench.submit(long).until(lambda: loop.request_counts.decoding == 2)
    assert len(drafter.accepted) - rounds >= 100 // 8 - 2
    bench.run()


@pytest.mark.parametrize(
    ("family", "others"),
    few(
        product(
            ("llama", "gemma3_text", "qwen3_next", "falcon_h1", "recurrent_gemma"),
            [(1,), (1, 1), (1, 7), (5, 1)],
        ),
        every=3,
    ),
)
def test_prompts_of_one_token_share_a_batch(family: str, others: tuple[int, ...]) -> None:
    rows = [request(f"{i}", prompt(n, i), max_tokens=10) for i, n in enumerate((*others, 4))]
    Bench(loop_of(family)).run(*rows).proven(family)


@pytest.mark.parametrize("family", few(KINDS, "gpt_oss", "falcon_h1"))
def test_rows_that_come_and_go_at_every_step(family: str) -> None:
    rows = [request(f"{i}", prompt(4 + 3 * i, i), max_tokens=3 + 5 * (i % 3)) for i in range(6)]
    bench = Bench(loop_of(family, noisy(family), limits=replace(LIMITS, max_rows=4)))
    for one in rows:
        bench.submit(one).step()
        bench.step()
    bench.run().proven(family)


def test_the_reason_why_speculation_is_off_is_reported() -> None:
    def reason(loop: EngineLoop, **asked: object) -> str:
        bench = Bench(loop).run(request(speculation=Speculation(**{"strategy": DRAFT, **asked})))
        bench.proven("llama")
        assert bench.stats().proposed == 0
        return bench.stats().speculation.code

    assert reason(loop_of("llama")) == "spec.off.no_draft_model"
    assert reason(loop_of("llama", model("llama")), strategy=OFF) == "spec.off.requested"
    none = DraftLength.exactly(0)
    assert reason(loop_of("llama", model("llama")), draft_length=none) == "spec.off.zero_window"
    refused = loop_of("llama")
    refused.use_drafters([], Reason("spec.off.tokenizer", {"detail": "other"}))
    assert reason(refused) == "spec.off.tokenizer"


def test_an_unknown_cache_of_target_or_draft_turns_speculation_off_by_name() -> None:
    strange = Counting(make_cache=lambda: [StuckCache()])
    for target, draft in ((strange, Counting()), (Counting(), strange)):
        bench = Bench(build_loop(target, 64, LIMITS, draft=draft))
        bench.run(request(tokens=(5,), max_tokens=8))
        assert bench.tokens["a"] == list(range(6, 14))
        assert bench.stats().speculation == Reason("spec.off.cache", {"layers": "StuckCache"})


def test_a_request_sets_its_own_window() -> None:
    bench = Bench(loop_of("llama", model("llama"), window=4))
    bench.run(request(max_tokens=30, speculation=Speculation(DRAFT, DraftLength.exactly(9))))
    assert len(bench.stats().drafters["tiny"].accepted_at) == 9
