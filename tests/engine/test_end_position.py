"""No end token before a position: the same tokens with speculation, in a batch, beside masks."""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import pytest

from omlx.engine.device.sampling import Draw, RowSampler, draw, permit, process
from omlx.engine.speculation.strategy import parse
from omlx.engine.types import FinishReason, Sampling, Speculation
from tests import zoo
from tests.engine.harness import GREEDY, WARM, Bench, loop_of, model, noisy, plain, prompt, request
from tests.lanes import few

END = tuple(range(0, zoo.VOCAB_SIZE, 3))
"""So many end tokens that every answer meets one at once."""
TARGETS = ("llama", "gemma3_text", "recurrent_gemma")


@pytest.mark.parametrize("target", few(TARGETS, "recurrent_gemma"))
@pytest.mark.parametrize("sampling", few((WARM, GREEDY), WARM))
@pytest.mark.parametrize("strategy", ["ngram", "draft", "auto"])
def test_the_end_waits_for_its_position_under_speculation(
    target: str, sampling: Sampling, strategy: str
) -> None:
    tokens = prompt(13)
    late = replace(sampling, end_ids=END, end_position=len(tokens) + 20)
    asked = request(
        "first",
        tokens,
        late,
        max_tokens=60,
        stop_ids=frozenset(END),
        speculation=Speculation(parse(strategy)),
    )
    expected = plain(target, asked)
    assert not set(expected[:20]) & set(END)
    assert expected[-1] in END
    bench = Bench(loop_of(target, noisy(target)))
    other = request("other", prompt(21, 1), sampling, max_tokens=30)
    bench.prove(target, "joined", asked, other, meet=5)
    assert bench.tokens["first"] == expected


def test_a_mask_that_allows_ends_alone_wins() -> None:
    sampling = Sampling(temperature=0.7, end_ids=(2, 5), end_position=100)
    logits = mx.array([[9.0, 1.0, 2.0, 3.0, 4.0, 1.0, 0.0, 0.0]])
    place = Draw(RowSampler(sampling, 8), 3)
    processed = process(logits, [place])
    assert int(draw(processed, [place]).item()) not in (2, 5)
    assert int(draw(permit(processed, [bytes([1 << 5])]), [place]).item()) == 5


def test_logits_are_unchanged_from_the_position_on() -> None:
    sampling = replace(WARM, end_ids=(2, 99), end_position=7)
    sampler = RowSampler(sampling, 8)
    logits = mx.array([[9.0, 1.0, 2.0, 3.0, 4.0, 1.0, 0.0, 0.0]])
    assert process(logits, [Draw(sampler, 7)]) is logits
    assert process(logits, [Draw(sampler, 6)])[0, 2].item() < -1e8
    assert not RowSampler(replace(GREEDY, end_ids=(2,), end_position=7), 8).bare
    assert RowSampler(replace(GREEDY, end_ids=(99,), end_position=7), 8).bare


def test_an_end_that_never_comes_is_the_limit() -> None:
    late = replace(GREEDY, end_ids=END, end_position=1 << 62)
    asked = request("a", prompt(13), late, max_tokens=40, stop_ids=frozenset(END))
    bench = Bench(loop_of("llama", model("llama")))
    bench.submit(asked)
    bench.run()
    assert len(bench.tokens["a"]) == 40
    assert bench.finished["a"].reason is FinishReason.LENGTH
