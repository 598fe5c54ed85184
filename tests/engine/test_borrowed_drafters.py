"""Drafters and text models of mlx-vlm: tokens are plain decoding's, drafts the modules' own."""

from __future__ import annotations

from itertools import product
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn

from lab.bench.drive import fixed_costs, flat
from omlx.draft_length import DraftLength
from omlx.engine.build import build_loop
from omlx.engine.device.model import Taps, cache_maker, parts_of
from omlx.engine.speculation.strategy import DRAFT, only, parse
from omlx.engine.types import Sampling, Speculation
from omlx.errors import Reason
from tests import zoo
from tests.engine.harness import (
    GREEDY,
    LIMITS,
    WARM,
    Bench,
    facts,
    label,
    loop_of,
    model,
    noisy,
    plain,
    prompt,
    request,
    unassisted,
)
from tests.engine.heads import prove, prove_batch, prove_masked, prove_penalised
from tests.engine.masks import Rule, formal, thirds, until
from tests.lanes import few

pytest.importorskip("mlx_vlm")

from tests.engine.borrowed import CONFIGS, HEADS, watched

FAMILIES = ("llama", "qwen3_5")
"""Attention alone, and with recurrent layers."""
PAIRS = [*product(CONFIGS, FAMILIES), *(("mtp", family) for family in HEADS)]
"""Kinds of drafters, each with the family of its target."""


@pytest.mark.parametrize("sampling", few((GREEDY, WARM), WARM), ids=label)
@pytest.mark.parametrize("kind", CONFIGS)
def test_tokens_equal_plain_decoding(kind: str, sampling: Sampling) -> None:
    of = prove(watched(kind, "llama"), sampling, "noisy", 80)
    assert of.rounds >= 40
    assert len(of.drafted) > 5


@pytest.mark.parametrize("kind", few(("eagle", "dspark"), "dspark"))
def test_tokens_equal_plain_decoding_beside_recurrent_layers(kind: str) -> None:
    prove(watched(kind, "qwen3_5"), WARM, "noisy")


@pytest.mark.parametrize("family", few(HEADS, "nemotron_h"))
def test_heads_of_other_families(family: str) -> None:
    of = prove(watched("mtp", family), WARM, "noisy", 90)
    assert of.drafter.kind == "mtp"
    assert len(of.drafted) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=label)
@pytest.mark.parametrize(("kind", "family"), PAIRS)
def test_two_hundred_rounds_of_two_rows(kind: str, family: str, sampling: Sampling) -> None:
    # Rows of a family without uneven passes draft one after another.
    paused = facts(family).unbatchable is None and facts(family).no_uneven is not None
    lengths = {"max_tokens": 700} if paused else {"max_tokens": 400, "beside": 400}
    assert prove(watched(kind, family), sampling, "noisy", **lengths).rounds >= 200


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampling", "quality"), [(GREEDY, "right"), (GREEDY, "random"), (WARM, "broken")], ids=label
)
@pytest.mark.parametrize(("kind", "family"), PAIRS)
def test_drafts_of_every_quality(kind: str, family: str, sampling: Sampling, quality: str) -> None:
    prove(watched(kind, family), sampling, quality, 200)


@pytest.mark.parametrize("quality", ["right", "broken"])
def test_all_or_nothing_is_accepted(quality: str) -> None:
    prove(watched("eagle", "llama"), GREEDY, quality, 30)


@pytest.mark.parametrize("kind", few(("eagle", "dflash2"), "dflash2"))
@pytest.mark.parametrize("rule", [thirds, until(formal, 23)], ids=["thirds", "formal"])
def test_masks_hold_for_drafts(kind: str, rule: Rule) -> None:
    of = watched(kind, "llama")
    prove_masked(of, rule, parse(f"ngram;{of.drafter.kind}"))


@pytest.mark.parametrize("kind", ["eagle", "dflash"])
def test_penalties_and_chains_with_lookups(kind: str) -> None:
    of = watched(kind, "llama")
    prove_penalised(of, parse(f"ngram;{of.drafter.kind}"))


@pytest.mark.parametrize("kind", ["eagle", "dspark"])
def test_rows_of_a_batch_draft(kind: str) -> None:
    prove_batch(watched(kind, "llama"))


def test_a_block_costs_one_pass_however_long_it_is() -> None:
    of = watched("dspark", "llama")
    one = of.by(request("a", prompt(20), GREEDY, 40))
    of.answers = {"a": plain("llama", unassisted(one))}
    bench = of.bench(None, LIMITS, fixed_costs(flat, of.drafter.name, 0.5)).run(one)
    assert bench.tokens == of.answers
    assert max(window.draft_n for window in bench.windows) == CONFIGS["dspark"]["block_size"]


@pytest.mark.parametrize("family", ["llama", "qwen3_5"])
def test_taps_note_what_the_layers_return(family: str) -> None:
    """Compared with a target that ends behind the layer."""
    parts = parts_of(model(family))
    body: Any = parts.body
    tokens = mx.array([prompt(9), prompt(9, salt=1)])
    taps = Taps(body, body.layers, (2, 0))
    assert mx.array_equal(
        taps(tokens, cache=cache_maker(model(family))()),
        body(tokens, cache=cache_maker(model(family))()),
    )
    noted = mx.split(taps.take(), 2, axis=-1)
    for number, found in zip(taps.ids, noted, strict=True):
        assert mx.allclose(found, ended_behind(family, number, tokens), atol=1e-5)


def ended_behind(family: str, number: int, tokens: mx.array) -> mx.array:
    """The states behind a layer: those of a copy without its other layers, before its last norm."""
    body: Any = parts_of(zoo.build(family)).body
    body.norm = nn.Identity()
    cache = cache_maker(model(family))()
    body.layers[number + 1 :] = [Passing(layer) for layer in body.layers[number + 1 :]]
    return body(tokens, cache=cache)


class Passing(nn.Module):
    """A layer that returns its input."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.is_linear = getattr(layer, "is_linear", False)
        self.use_sliding = getattr(layer, "use_sliding", False)

    def __call__(self, x: mx.array, *args: Any, **kwargs: Any) -> mx.array:
        return x


def test_a_pass_leaves_the_target_as_it_was() -> None:
    of = watched("eagle", "llama")
    target = model("llama")
    before = [id(layer) for layer in target.layers]
    of.bench().run(of.by(request("a", max_tokens=12)))
    assert [id(layer) for layer in target.layers] == before
    tokens = mx.array([prompt(5)])
    body = of.drafter.parts.body
    with pytest.raises(TypeError):
        body(tokens, cache=None, unknown=1)
    with pytest.raises(AttributeError):
        body(tokens, cache=[object()] * 3)
    assert [id(layer) for layer in target.layers] == before


@pytest.mark.parametrize("kind", CONFIGS)
def test_the_bytes_of_caches_are_known_before_they_are_held(kind: str) -> None:
    of = watched(kind, "llama")
    bench = of.bench().submit(of.by(request("a", prompt(60), max_tokens=20)))
    bench.until(lambda: len(bench.tokens["a"]) >= 12)
    expected, held = of.drafter.cache_bytes(256), of.drafter.held_bytes
    assert 0 < held <= expected  # caches grow by 256 tokens


def test_missing_drafters_are_named() -> None:
    bench = Bench(build_loop(model("llama"), zoo.VOCAB_SIZE, LIMITS, facts=facts("llama")))
    for kind, named in (("eagle", "EAGLE-3"), ("block", "DFlash, DSpark")):
        bench.run(request(kind, max_tokens=8, speculation=Speculation(only(kind))))
        missing = Reason("spec.off.no_drafter", {"kind": named})
        assert bench.stats(kind).speculation == missing
        assert bench.stats(kind).gates[kind].reason == missing


@pytest.mark.slow
@pytest.mark.parametrize(("length", "repair"), [(4, "trim"), (12, "restore")])
def test_accepted_tokens_of_short_windows_are_not_read_again(length: int, repair: str) -> None:
    bench = Bench(loop_of("qwen4_exp", noisy("qwen4_exp", 0.05)))
    wanted = Speculation(DRAFT, DraftLength.exactly(length))
    bench.run(request("a", prompt(29), max_tokens=48, speculation=wanted)).proven("qwen4_exp")
    repairs = bench.stats("a").drafters["tiny"].repairs
    assert repairs[repair] > 2
    pending = max(window.pending for window in bench.windows if window.draft_n)
    assert (pending > 1) == (repair == "restore")


@pytest.mark.parametrize("token", [8, 15])
def test_windows_at_the_beginning_of_a_text_are_stepped_back(token: int) -> None:
    """Such windows are read token by token, by qwen4_exp's bodies."""
    bench = Bench(loop_of("qwen4_exp", noisy("qwen4_exp", 0.3)))
    wanted = Speculation(DRAFT, DraftLength.exactly(1))
    bench.run(request("a", (token,), max_tokens=6, speculation=wanted)).proven("qwen4_exp")
    assert bench.stats("a").drafters["tiny"].repairs["trim"] > 0


@pytest.mark.parametrize("name", few(zoo.BORROWED_NAMES, "glm5_next"))
def test_borrowed_text_models_equal_plain_decoding(name: str) -> None:
    bench = Bench(loop_of(name, noisy(name, 0.02)))
    first = request("a", prompt(29), GREEDY, max_tokens=26)
    bench.prove(name, "joined", first, request("b", prompt(9, 1), WARM, max_tokens=20))
    assert bench.stats("a").accepted > 5
    tokens = (*first.tokens, *bench.tokens["a"], 5, 6, 7)
    turn = request("c", tokens, WARM, max_tokens=12)
    other = request("d", (*first.tokens, 50, 51, 52), GREEDY, max_tokens=2)
    bench.run(turn).run(other).proven(name)
    # states and pools are stored where an answer and a prompt end, but for their newest token
    assert bench.stats("c").cached_n == len(tokens) - 4
    assert bench.stats("d").cached_n >= len(first.tokens) - 1
