"""Trained heads: tokens are plain decoding's, whatever a head drafts; drafts are what the head says
of the target's own hidden states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn

from lab.bench.drive import fixed_costs, flat
from omlx.engine.build import build_loop
from omlx.engine.device.model import cache_maker, parts_of, split
from omlx.engine.loop import EngineLoop
from omlx.engine.speculation.drafters.head import (
    MAX_STATES,
    HeadDrafter,
    Shortlist,
    shortlist_bytes,
)
from omlx.engine.speculation.strategy import only, parse
from omlx.engine.types import Request, Sampling, Speculation
from omlx.errors import Reason
from tests import zoo
from tests.engine.fakes import VOCAB
from tests.engine.harness import (
    GREEDY,
    LIMITS,
    WARM,
    Bench,
    label,
    loop_of,
    model,
    prompt,
    request,
    unassisted,
)
from tests.engine.heads import (
    CountingHead,
    CountingText,
    head_of,
    prove,
    prove_batch,
    prove_masked,
    prove_penalised,
    random_head,
    watched,
)
from tests.engine.masks import Rule, formal, thirds, until
from tests.lanes import few

FAMILIES = ("llama", "qwen3_5", "qwen3_5_moe", "qwen3_next", "glm4_moe", "deepseek_v3")
"""Those whose checkpoints have heads, and the bundled target's."""
OTHERS = ("gemma3_text", "gpt_oss", "falcon_h1", "lfm2")
"""Other kinds of caches."""


def counting(head: Any) -> EngineLoop:
    target = CountingText()
    return build_loop(target, VOCAB, LIMITS, heads={"mtp": head_of(target, head, VOCAB)})


def by_head(of: Request) -> Request:
    return replace(of, speculation=Speculation(only("mtp")))


@pytest.mark.parametrize(
    ("family", "sampling", "quality", "length"),
    few(
        product((*FAMILIES, *OTHERS), (GREEDY, WARM), ("right", "noisy", "random"), (1, 3, 8)),
        ("qwen3_5", WARM, "noisy", 3),
        ("deepseek_v3", WARM, "noisy", 3),
    ),
    ids=label,
)
def test_tokens_equal_plain_decoding(
    family: str, sampling: Sampling, quality: str, length: int
) -> None:
    of = prove(watched(family), sampling, quality, 40, length=length)
    assert len(of.drafted) > (10 if quality == "noisy" else 3)


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=label)
def test_a_head_that_is_right_is_accepted_whole(sampling: Sampling) -> None:
    """It is right only where each token is paired with the hidden state before it."""
    count = tuple(range(1, 30))
    loop = counting(CountingHead())
    bench = Bench(loop).run(by_head(request("a", count, sampling, 33)))
    assert bench.tokens["a"] == [(30 + i) % VOCAB for i in range(33)]
    stats = bench.stats()
    assert stats.proposed == stats.accepted > 20
    assert len(bench.plans) < 12


def test_a_head_that_rested_begins_with_the_newest_states() -> None:
    """While lookups draft it is not asked; then it catches up, as far as states are kept."""
    count = tuple(range(VOCAB)) * 2
    loop = build_loop(CountingText(), VOCAB, replace(LIMITS, context_length=4096))
    rests = HeadDrafter("mtp", CountingHead(), parts_of(loop.runner.model), VOCAB)
    loop.use_drafters([rests])
    loop.scheduler.speculator.cost_model = fixed_costs(flat, "mtp", 0.01)
    bench = Bench(loop).submit(unassisted(request("a", count, GREEDY, MAX_STATES + 60)))
    bench.until(lambda: len(bench.tokens["a"]) > 3)
    (row,) = loop.scheduler.running
    rests.open(row)  # as if it had been admitted, and never paid
    bench.until(lambda: len(bench.tokens["a"]) > MAX_STATES + 40)
    bench.loop.flush()
    proposal = rests.propose(row, 4, only("mtp").clauses[0])
    assert MAX_STATES - 3 <= proposal.lag <= MAX_STATES
    draft = rests.draft(row, 4)
    newest = row.tokens[-1]
    assert draft.array.tolist() == [(newest + 1 + i) % VOCAB for i in range(4)]
    rests.check()


def test_rows_of_a_batch_draft_by_their_heads() -> None:
    prove_batch(watched("llama"))


@pytest.mark.parametrize("rule", [thirds, until(formal, 23)], ids=["thirds", "formal"])
@pytest.mark.parametrize("strategy", few(("mtp", "ngram;mtp"), "ngram;mtp"))
def test_heads_draft_under_masks(rule: Rule, strategy: str) -> None:
    prove_masked(watched("qwen3_5"), rule, parse(strategy))


def test_heads_draft_with_penalties_and_in_chains() -> None:
    prove_penalised(watched("llama"), parse("ngram;mtp"))


def test_a_draft_model_comes_before_a_head_unless_the_head_is_named() -> None:
    loop = loop_of("llama", model("llama"))
    drafters = list(loop.scheduler.speculator.drafters)
    loop.use_drafters([*drafters, watched("llama").drafter])
    bench = Bench(loop).run(request("auto", max_tokens=12, speculation=Speculation(parse("auto"))))
    assert "mtp" not in bench.stats("auto").gates
    assert "tiny" in bench.stats("auto").gates
    bench.run(by_head(request("named", max_tokens=12)))
    assert [*bench.stats("named").drafters] == ["mtp"]


def test_a_head_that_raises_is_silent_alone() -> None:
    class Broken(CountingHead):
        def __call__(self, embedded: mx.array, hidden: mx.array, cache: list[Any]) -> mx.array:
            raise RuntimeError("no idea")

    loop = counting(Broken())
    bench = Bench(loop).run(by_head(request("a", tuple(range(9)), max_tokens=12)))
    assert bench.tokens["a"] == [9 + i for i in range(12)]
    assert bench.stats().speculation.code == "spec.off.drafter_failed"


def test_a_missing_head_is_named() -> None:
    bench = Bench(loop_of("llama")).run(by_head(request("a", max_tokens=8)))
    assert bench.stats().speculation == Reason("spec.off.no_head")
    assert bench.stats().gates["mtp"].reason == Reason("spec.off.no_head")


def test_models_that_do_more_behind_their_layers_have_no_head() -> None:
    assert [name for name in ("cohere", "gemma2", "llama") if refused(name)] == ["cohere", "gemma2"]
    heads = {"mtp": head_of(model("cohere"), CountingHead(), zoo.VOCAB_SIZE)}
    bench = Bench(loop_of("cohere", heads=heads)).run(by_head(request("a", max_tokens=8)))
    assert bench.stats().speculation == Reason("spec.off.hidden", {"model": "cohere"})


def refused(name: str) -> bool:
    parts = split(model(name), cache_maker(model(name)), zoo.VOCAB_SIZE)
    return isinstance(parts, Reason)


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
    head, make_cache = random_head("llama"), cache_maker(target)
    made = HeadDrafter.of("mtp", head, target, make_cache, zoo.VOCAB_SIZE, ids)
    assert made.code == "spec.off.head_weights"
    assert said in str(made.params["detail"])
    bench = Bench(loop_of("llama", heads={"mtp": made}))
    bench.run(by_head(request("a", max_tokens=8))).proven("llama")
    assert bench.stats().speculation == made


def test_an_output_layer_of_another_kind_is_refused() -> None:
    made = Shortlist.of(mx.array([1], mx.int32), nn.Bilinear(2, 2, 2), 8)
    assert "Bilinear" in str(made.params["detail"])


@pytest.mark.parametrize("sampling", few((GREEDY, WARM), WARM), ids=label)
def test_tokens_equal_plain_decoding_alone_and_in_company(sampling: Any) -> None:
    """Drafts are those of a reference that scores all ids; where they are wrong none is kept."""
    rows = [by_head(request(f"r{i}", prompt(9 + 7 * i, salt=i), sampling, 30)) for i in range(3)]
    alone = watched("llama", HALF)
    alone.bench().run(rows[0]).proven("llama")
    assert len(alone.drafted) > 10
    assert alone.drafted == alone.expected
    assert {token for draft in alone.drafted for token in draft} <= set(HALF)
    company = watched("llama", HALF)
    company.bench(4, replace(LIMITS, max_rows=3)).run(*rows).proven("llama")
    assert company.drafted == company.expected


def test_a_shortlist_of_one_token_changes_nothing() -> None:
    only_one = watched("llama", (7,))
    only_one.bench().run(by_head(request("a", prompt(11), GREEDY, 20))).proven("llama")
    assert {token for draft in only_one.drafted for token in draft} == {7}


@pytest.mark.parametrize("ids", [HALF, (1, 2, 4)], ids=["half", "none that is allowed"])
def test_shortlists_under_masks(ids: Sequence[int]) -> None:
    prove_masked(watched("qwen3_5", ids), thirds, only("mtp"), 24)


def test_shortlists_with_penalties() -> None:
    prove_penalised(watched("llama", HALF), only("mtp"))
