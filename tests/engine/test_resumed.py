"""A request whose first tokens another process has committed continues with the same tokens."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from omlx.engine.speculation.strategy import parse
from omlx.engine.types import FinishReason, Sampling, Speculation
from tests.engine.harness import Bench, loop_of, noisy, plain, prompt, request, unassisted
from tests.lanes import few

PENALTIES = Sampling(temperature=0.8, seed=11, repetition_penalty=1.3, frequency_penalty=0.4)


@pytest.mark.parametrize(
    ("target", "strategy"),
    few(product(("llama", "gemma3_text", "recurrent_gemma"), ("off", "draft", "ngram")), every=4),
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
