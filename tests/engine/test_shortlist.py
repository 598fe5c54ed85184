"""Heads that draft a part of the vocabulary: its logits, what is refused, and exact tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn

from omlx.engine.device.model import cache_maker
from omlx.engine.speculation.drafters.head import HeadDrafter, Shortlist, shortlist_bytes
from omlx.engine.speculation.strategy import only
from omlx.engine.types import Request, Speculation
from omlx.errors import Reason
from tests import zoo
from tests.engine.harness import (
    GREEDY,
    LIMITS,
    WARM,
    Bench,
    label,
    model,
    plain,
    prompt,
    request,
    unassisted,
)
from tests.engine.heads import Observed, loop_with, random_head
from tests.engine.masks import Ruled, thirds
from tests.engine.test_masking import expected as under_mask

WIDTH, VOCABULARY = 64, 40
IDS = (31, 2, 39, 0, 17)
HALF = tuple(range(zoo.VOCAB_SIZE - 1, 0, -2))


def packed(layer: nn.Module) -> nn.Module:
    return layer.to_quantized(group_size=32, bits=4)


OUTPUTS: list[Callable[[], Any]] = [
    lambda: nn.Embedding(VOCABULARY, WIDTH),
    lambda: nn.Linear(WIDTH, VOCABULARY),
    lambda: packed(nn.Embedding(VOCABULARY, WIDTH)),
    lambda: packed(nn.Linear(WIDTH, VOCABULARY)),
]


@pytest.mark.parametrize("make", OUTPUTS, ids=["table", "layer", "packed table", "packed layer"])
def test_logits_are_those_of_the_whole_output_layer(make: Callable[[], Any]) -> None:
    mx.random.seed(1)
    output = make()
    hidden = mx.random.normal((3, WIDTH))
    whole = output.as_linear(hidden) if hasattr(output, "as_linear") else output(hidden)
    shortlist = Shortlist(mx.array(IDS, mx.int32), output)
    logits = shortlist.logits(hidden, VOCABULARY)
    assert logits.shape == whole.shape
    assert mx.allclose(logits[:, mx.array(IDS)], whole[:, mx.array(IDS)], atol=1e-5)
    others = mx.array([token for token in range(VOCABULARY) if token not in IDS])
    assert mx.all(logits[:, others] == -mx.inf)
    assert shortlist.best(hidden).tolist() == mx.argmax(logits, axis=-1).tolist()
    total = shortlist_bytes(VOCABULARY, output)
    assert shortlist_bytes(len(IDS), output) * VOCABULARY == total * len(IDS)


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        (mx.array([], mx.int32), "found int32 [0]"),
        (mx.array([[1, 2]], mx.int32), "found int32 [1, 2]"),
        (mx.array([1.0, 2.0]), "found float32 [2]"),
        (mx.array([1, 2], mx.int64), "found int64 [2]"),
        (mx.array([1, zoo.VOCAB_SIZE], mx.int32), f"{zoo.VOCAB_SIZE} is no id"),
        (mx.array([1, -1], mx.int32), "-1 is no id"),
        (mx.array([5, 1, 5], mx.int32), "an id occurs twice"),
    ],
    ids=["empty", "2-D", "floats", "int64", "too large", "negative", "twice"],
)
def test_malformed_shortlists_are_refused(ids: mx.array, said: str) -> None:
    target = model("llama")
    made = HeadDrafter.of(
        "mtp", random_head("llama"), target, cache_maker(target), zoo.VOCAB_SIZE, ids
    )
    assert isinstance(made, Reason)
    assert made.code == "spec.off.head_weights"
    assert said in str(made.params["detail"])
    bench = Bench(loop_with("llama", made)).run(by_head(request("a", max_tokens=8)))
    assert bench.tokens["a"] == plain("llama", request("a", max_tokens=8))
    assert bench.stats().speculation == made


def test_an_output_layer_of_another_kind_is_refused() -> None:
    made = Shortlist.of(mx.array([1], mx.int32), nn.Bilinear(2, 2, 2), 8)
    assert isinstance(made, Reason)
    assert "Bilinear" in str(made.params["detail"])


@pytest.mark.parametrize("sampling", [GREEDY, replace(WARM, temperature=0.8)], ids=label)
def test_tokens_equal_plain_decoding_alone_and_in_company(sampling: Any) -> None:
    """Drafts are those of a reference that scores all ids; where they are wrong none is kept."""
    rows = [by_head(request(f"r{i}", prompt(9 + 7 * i, salt=i), sampling, 30)) for i in range(3)]
    answers = {row.id: plain("llama", unassisted(row)) for row in rows}
    alone = drafter()
    bench = Bench(loop_with("llama", alone)).run(rows[0])
    assert bench.tokens[rows[0].id] == answers[rows[0].id]
    assert len(alone.drafted) > 10
    assert alone.drafted == alone.expected
    assert {token for draft in alone.drafted for token in draft} <= set(HALF)
    company = drafter()
    limits = replace(LIMITS, max_rows=3)
    assert Bench(loop_with("llama", company, 4, limits)).run(*rows).tokens == answers
    assert company.drafted == company.expected


def test_a_shortlist_of_one_token_changes_nothing() -> None:
    of = by_head(request("a", prompt(11), GREEDY, 20))
    only_one = drafter((7,))
    bench = Bench(loop_with("llama", only_one)).run(of)
    assert bench.tokens["a"] == plain("llama", unassisted(of))
    assert {token for draft in only_one.drafted for token in draft} == {7}


@pytest.mark.parametrize("ids", [HALF, (1, 2, 4)], ids=["half", "none that is allowed"])
def test_shortlists_under_masks(ids: Sequence[int]) -> None:
    of = request("a", prompt(6) * 4, WARM, 24, speculation=Speculation(only("mtp")))
    masked = replace(of, mask=Ruled(thirds))
    bench = Bench(loop_with("qwen3_5", Observed("qwen3_5", draft_ids=ids))).run(masked)
    assert bench.tokens["a"] == under_mask(of, thirds, "qwen3_5")
    assert bench.stats().proposed > 0


def test_shortlists_with_penalties() -> None:
    penalised = replace(WARM, repetition_penalty=1.3, presence_penalty=0.5)
    of = by_head(request("a", prompt(9) * 3, penalised, 30))
    bench = Bench(loop_with("llama", Observed("llama", draft_ids=HALF))).run(of)
    assert bench.tokens["a"] == plain("llama", unassisted(of))
    assert bench.stats().proposed > 0


def drafter(ids: Sequence[int] = HALF) -> Observed:
    return Observed("llama", compares=True, draft_ids=ids)


def by_head(of: Request) -> Request:
    return replace(of, speculation=Speculation(only("mtp")))
