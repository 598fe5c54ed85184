"""Logprobs of prompts equal those of one pass, however it is chunked, cached or batched."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache

from omlx.engine.step.plan import Plan
from omlx.engine.types import PrefillProgress, Request, TokenLogprob
from tests import zoo
from tests.engine.harness import KINDS, LIMITS, Bench, loop_of, model, prompt, request
from tests.lanes import few

TOP = 3
SLICES = replace(LIMITS, prefill_slice=8, prefill_chunk=64)


def scored(name: str = "a", length: int = 29) -> Request:
    return request(name, prompt(length), max_tokens=6, prompt_logprobs=TOP)


def scores(bench: Bench, name: str = "a") -> list[TokenLogprob]:
    events = [event for event in bench.events if isinstance(event, PrefillProgress)]
    return list(chain.from_iterable(e.logprobs for e in events if e.request_id == name))


def expect(family: str, bench: Bench, one: Request) -> None:
    """What the engine said, against one pass over the whole prompt."""
    target, entries = model(family), scores(bench, one.id)
    logits = target(mx.array([one.tokens]), cache=make_prompt_cache(target))[
        0, :-1, : zoo.VOCAB_SIZE
    ]
    logprobs = (logits - mx.logsumexp(logits, axis=-1, keepdims=True)).tolist()
    assert [entry.token for entry in entries] == list(one.tokens[1:])
    for entry, row in zip(entries, logprobs, strict=True):
        assert entry.logprob == pytest.approx(row[entry.token], abs=2e-3)
        assert [value for _, value in entry.top] == pytest.approx(
            sorted(row)[: -TOP - 1 : -1], abs=2e-3
        )
    bench.proven(family, one)


@pytest.mark.parametrize("family", few(KINDS, "llama", "gemma3_text", "qwen3_next"))
def test_they_are_those_of_one_pass(family: str) -> None:
    bench = Bench(loop_of(family, limits=SLICES)).run(scored())
    expect(family, bench, scored())
    assert max(window.width for window in bench.windows) <= 8


def test_a_prompt_that_is_there_already_is_computed_again_and_kept_once() -> None:
    bench = Bench(loop_of("llama", limits=SLICES)).run(request("first", prompt(29), max_tokens=6))
    before = bench.loop.prefix_stats
    bench.run(scored())
    assert bench.stats().cached_n == 0
    expect("llama", bench, scored())
    assert bench.loop.prefix_stats.tokens == before.tokens
    bench.run(request("after", prompt(29), max_tokens=6))
    assert bench.stats("after").cached_n > 0


def test_beside_others_and_by_a_plan_that_went_through_bytes() -> None:
    bench = Bench(loop_of("llama", limits=SLICES))
    bench.submit(request("b", prompt(13, 1), max_tokens=40))
    bench.until(lambda: len(bench.tokens["b"]) > 3)
    bench.run(scored(), scored("c", 17))
    expect("llama", bench, scored())
    expect("llama", bench, scored("c", 17))
    assert [Plan.from_bytes(plan.to_bytes()) for plan in bench.plans] == bench.plans


def test_a_prompt_of_one_token_has_none() -> None:
    bench = Bench(loop_of("llama")).run(scored(length=1))
    assert scores(bench) == []
