"""Requests that only compute a prompt, and requests that continue an answer begun elsewhere."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from omlx.engine.speculation.strategy import parse
from omlx.engine.types import FinishReason, Request, Sampling, Speculation
from tests.engine.harness import (
    KINDS,
    LIMITS,
    WARM,
    Bench,
    loop_of,
    noisy,
    plain,
    prompt,
    request,
    unassisted,
)
from tests.lanes import few


def fill(name: str, tokens: tuple[int, ...], stable: int = 0) -> Request:
    return request(name, tokens, max_tokens=0, stable=stable)


@pytest.mark.parametrize("family", few(KINDS, "recurrent_gemma", "deepseek_v3"))
def test_the_next_request_computes_one_token(family: str) -> None:
    bench = Bench(loop_of(family, noisy(family)))
    for name, cached in (("a", 0), ("b", 39)):
        bench.run(fill(name, prompt(40), stable=37))
        ended = bench.finished[name]
        assert ended.reason is FinishReason.LENGTH
        assert ended.stats.cached_n == cached
        assert ended.stats.prompt_n == 40
        assert ended.stats.predicted_n == 0
        assert bench.tokens[name] == []
        assert not any(window.sample for window in bench.windows)
    for name, sampling in (("c", WARM), ("d", replace(WARM, temperature=0.0))):
        asked = request(name, prompt(40), sampling, max_tokens=16)
        bench.run(asked).proven(family, asked)
        assert bench.stats(name).cached_n == 39


@pytest.mark.parametrize(
    "family", few(("llama", "gemma3_text", "recurrent_gemma"), "recurrent_gemma")
)
def test_a_filled_row_leaves_decoding_rows_alone(family: str) -> None:
    bench = Bench(loop_of(family, limits=replace(LIMITS, prefill_slice=8)))
    rows = [unassisted(request(name, prompt(12, salt), WARM)) for salt, name in enumerate("ab")]
    bench.submit(*rows).until(lambda: len(bench.tokens["b"]) >= 4)
    bench.run(fill("c", prompt(30, 3)), fill("d", (5,)), fill("e", prompt(12)))
    bench.proven(family, *rows)
    assert [bench.stats(name).predicted_n for name in "cde"] == [0, 0, 0]
    bench.run(asked := request("f", prompt(30, 3), WARM)).proven(family, asked)
    assert bench.stats("f").cached_n == 29


def test_a_cancelled_one_keeps_what_it_has_computed() -> None:
    loop = loop_of("llama", limits=replace(LIMITS, prefill_chunk=16))
    bench = Bench(loop).submit(fill("a", prompt(60)))
    bench.step()
    bench.step()
    loop.cancel("a")
    bench.run(fill("b", prompt(60)))
    assert bench.finished["a"].reason is FinishReason.CANCELLED
    assert bench.stats("b").cached_n == 32


PENALTIES = Sampling(temperature=0.8, seed=11, repetition_penalty=1.3, frequency_penalty=0.4)


@pytest.mark.parametrize(
    ("target", "strategy"),
    few(product(("llama", "gemma3_text", "recurrent_gemma"), ("off", "draft", "ngram")), every=8),
)
def test_the_rest_is_the_same(target: str, strategy: str) -> None:
    speculation = Speculation(parse(strategy))
    asked = request("a", prompt(13), PENALTIES, max_tokens=40, speculation=speculation)
    expected = plain(target, unassisted(asked))
    bench = Bench(loop_of(target, noisy(target)))
    for cut in (1, 17, 39):
        name = f"from {cut}"
        tokens = (*asked.tokens, *expected[:cut])
        bench.run(replace(asked, id=name, tokens=tokens, resumed=cut))
        assert bench.tokens[name] == expected[cut:]
        assert bench.finished[name].reason is FinishReason.LENGTH
        stats = bench.stats(name)
        assert (stats.prompt_n, stats.predicted_n) == (13, 40)
        assert stats.cached_n <= 13
