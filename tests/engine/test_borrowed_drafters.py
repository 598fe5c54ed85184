"""Drafters and text models of mlx-vlm: tokens are plain decoding's, drafts the modules' own."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn

from lab.bench.drive import fixed_costs, flat
from omlx.draft_length import DraftLength
from omlx.engine.build import build_loop
from omlx.engine.device.model import Taps, cache_maker, parts_of
from omlx.engine.loop import EngineLoop
from omlx.engine.speculation.cost_model import CostModel
from omlx.engine.speculation.strategy import DRAFT, only, parse
from omlx.engine.types import Limits, Request, Sampling, Speculation
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
from tests.engine.masks import Ruled, formal, thirds, until
from tests.engine.test_masking import expected as under_mask
from tests.lanes import few

pytest.importorskip("mlx_vlm")

from tests.engine.borrowed import CONFIGS, HEADS, Watched

WRONG = {
    "right": lambda at: False,
    "noisy": lambda at: at % 7 in (1, 2, 5),
    "broken": lambda at: True,
}
FAMILIES = ("llama", "qwen3_5")
"""Attention alone, and with recurrent layers."""
PAIRS = [*product(CONFIGS, FAMILIES), *(("mtp", family) for family in HEADS)]
"""Kinds of drafters, each with the family of its target."""


def loop_with(
    watched: Watched,
    length: int | None = 4,
    limits: Limits = LIMITS,
    costs: CostModel | None = None,
) -> EngineLoop:
    return build_loop(
        model(watched.family),
        zoo.VOCAB_SIZE,
        replace(limits, num_draft_tokens=length),
        heads={watched.drafter.kind: watched.drafter},
        cost_model=costs,
        facts=facts(watched.family),
    )


def drafted_by(of: Request, kind: str) -> Request:
    return replace(of, speculation=Speculation(only(kind)))


def prove(
    kind: str, family: str, sampling: Sampling, quality: str, max_tokens: int = 60, beside: int = 24
) -> Watched:
    """Prove a row, another of `beside` tokens, and one that continues the first."""
    watched = Watched(kind, family, bad=WRONG.get(quality, WRONG["right"]))
    of = watched.drafter.kind
    first = drafted_by(request("first", prompt(37), sampling, max_tokens), of)
    second = drafted_by(request("second", prompt(13, salt=1), sampling, beside), of)
    again = drafted_by(request("again", (*first.tokens, 5, 6, 7), sampling, 20), of)
    answers = {one.id: plain(family, unassisted(one)) for one in (first, second, again)}
    if quality != "random":
        watched.answers = dict(answers)
    limits = replace(LIMITS, prefill_chunk=16, context_length=2048)
    bench = Bench(loop_with(watched, 4, limits)).submit(first)
    bench.until(lambda: len(bench.tokens["first"]) >= 8).run(second).run(again)
    assert not bench.failed
    assert bench.tokens == answers
    assert bench.stats("again").cached_n > 0 or facts(family).uncacheable is not None
    stats = bench.stats("first")
    assert stats.proposed > 0, stats
    assert stats.accepted == {"right": stats.proposed, "broken": 0}.get(quality, stats.accepted)
    assert watched.drafted == watched.expected
    if beside > 24 and facts(family).unbatchable is facts(family).no_uneven is None:
        assert together(bench)
    return watched


def together(bench: Bench) -> bool:
    """Whether several rows drafted in one pass."""
    batched = [f for plan in bench.plans for f in plan.forwards if f.batched]
    return any(sum(window.draft_n > 0 for window in f.windows) > 1 for f in batched)


@pytest.mark.parametrize("sampling", few((GREEDY, WARM), WARM), ids=label)
@pytest.mark.parametrize("kind", CONFIGS)
def test_tokens_equal_plain_decoding(kind: str, sampling: Sampling) -> None:
    """Over prompts in chunks, rejections at every place, and a restored prefix."""
    watched = prove(kind, "llama", sampling, "noisy", 80)
    assert watched.rounds >= 40
    assert len(watched.drafted) > 5


@pytest.mark.parametrize("kind", few(("eagle", "dspark"), "dspark"))
def test_tokens_equal_plain_decoding_beside_recurrent_layers(kind: str) -> None:
    prove(kind, "qwen3_5", WARM, "noisy")


@pytest.mark.parametrize("family", few(HEADS, "nemotron_h"))
def test_heads_of_other_families(family: str) -> None:
    watched = prove("mtp", family, WARM, "noisy", 90)
    assert watched.drafter.kind == "mtp"
    assert len(watched.drafted) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=label)
@pytest.mark.parametrize(("kind", "family"), PAIRS)
def test_two_hundred_rounds_of_two_rows(kind: str, family: str, sampling: Sampling) -> None:
    # Rows of a family without uneven passes draft one after another.
    paused = facts(family).unbatchable is None and facts(family).no_uneven is not None
    lengths = {"max_tokens": 700} if paused else {"max_tokens": 400, "beside": 400}
    watched = prove(kind, family, sampling, "noisy", **lengths)
    assert watched.rounds >= 200


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampling", "quality"), [(GREEDY, "right"), (GREEDY, "random"), (WARM, "broken")], ids=label
)
@pytest.mark.parametrize(("kind", "family"), PAIRS)
def test_drafts_of_every_quality(kind: str, family: str, sampling: Sampling, quality: str) -> None:
    prove(kind, family, sampling, quality, 200)


@pytest.mark.parametrize("quality", ["right", "broken"])
def test_all_or_nothing_is_accepted(quality: str) -> None:
    prove("eagle", "llama", GREEDY, quality, 30)


@pytest.mark.parametrize("kind", few(("eagle", "dflash2"), "dflash2"))
@pytest.mark.parametrize("rule", [thirds, until(formal, 23)], ids=["thirds", "formal"])
def test_masks_hold_for_drafts(kind: str, rule: Any) -> None:
    watched = Watched(kind, "llama")
    strategy = parse(f"ngram;{watched.drafter.kind}")
    of = request("a", prompt(6) * 4, WARM, 30, speculation=Speculation(strategy))
    bench = Bench(loop_with(watched)).run(replace(of, mask=Ruled(rule)))
    assert bench.tokens["a"] == under_mask(of, rule, "llama")
    assert bench.stats().drafters[watched.drafter.name].proposed > 0


@pytest.mark.parametrize("kind", ["eagle", "dflash"])
def test_penalties_and_chains_with_lookups(kind: str) -> None:
    watched = Watched(kind, "llama")
    penalised = replace(WARM, repetition_penalty=1.3, presence_penalty=0.5)
    strategy = parse(f"ngram;{watched.drafter.kind}")
    of = request("a", prompt(9) * 3, penalised, 40, speculation=Speculation(strategy))
    bench = Bench(loop_with(watched)).run(of).proven("llama", of)
    assert {watched.drafter.name, "ngram"} <= bench.stats().drafters.keys()


@pytest.mark.parametrize("kind", ["eagle", "dspark"])
def test_rows_of_a_batch_draft(kind: str) -> None:
    watched = Watched(kind, "llama", bad=lambda at: at % 6 == 0)
    of = watched.drafter.kind
    rows = [drafted_by(request(f"r{i}", prompt(9 + 7 * i, salt=i), WARM, 40), of) for i in range(3)]
    watched.answers = {one.id: plain("llama", unassisted(one)) for one in rows}
    costs = fixed_costs(flat, watched.drafter.name, 0.02)
    bench = Bench(loop_with(watched, None, replace(LIMITS, max_rows=3), costs)).run(*rows)
    assert bench.tokens == watched.answers
    assert together(bench)
    assert watched.drafted == watched.expected


def test_a_block_costs_one_pass_however_long_it_is() -> None:
    watched = Watched("dspark", "llama")
    costs = fixed_costs(flat, watched.drafter.name, 0.5)
    of = drafted_by(request("a", prompt(20), GREEDY, 40), "block")
    watched.answers = {"a": plain("llama", unassisted(of))}
    bench = Bench(loop_with(watched, None, LIMITS, costs)).run(of)
    assert bench.tokens == watched.answers
    module: Any = watched.head.module
    longest = module.config.block_size - 1
    assert max(window.draft_n for window in bench.windows) == longest


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
    watched = Watched("eagle", "llama")
    target = model("llama")
    before = [id(layer) for layer in target.layers]
    Bench(loop_with(watched)).run(drafted_by(request("a", max_tokens=12), "eagle"))
    assert [id(layer) for layer in target.layers] == before
    tokens = mx.array([prompt(5)])
    body = watched.drafter.parts.body
    with pytest.raises(TypeError):
        body(tokens, cache=None, unknown=1)
    with pytest.raises(AttributeError):
        body(tokens, cache=[object()] * 3)
    assert [id(layer) for layer in target.layers] == before


@pytest.mark.parametrize("kind", CONFIGS)
def test_the_bytes_of_caches_are_known_before_they_are_held(kind: str) -> None:
    watched = Watched(kind, "llama")
    bench = Bench(loop_with(watched))
    bench.submit(drafted_by(request("a", prompt(60), max_tokens=20), watched.drafter.kind))
    bench.until(lambda: len(bench.tokens["a"]) >= 12)
    expected, held = watched.drafter.cache_bytes(256), watched.drafter.held_bytes
    assert 0 < held <= expected  # caches grow by 256 tokens


def test_missing_drafters_are_named() -> None:
    bench = Bench(build_loop(model("llama"), zoo.VOCAB_SIZE, LIMITS, facts=facts("llama")))
    for kind, named in (("eagle", "EAGLE-3"), ("block", "DFlash, DSpark")):
        bench.run(drafted_by(request(kind, max_tokens=8), kind))
        missing = Reason("spec.off.no_drafter", {"kind": named})
        assert bench.stats(kind).speculation == missing
        assert bench.stats(kind).gates[kind].reason == missing


@pytest.mark.slow
@pytest.mark.parametrize(("length", "repair"), [(4, "trim"), (12, "restore")])
def test_accepted_tokens_of_short_windows_are_not_read_again(length: int, repair: str) -> None:
    bench = Bench(loop_of("qwen4_exp", noisy("qwen4_exp", 0.05)))
    wanted = Speculation(DRAFT, DraftLength.exactly(length))
    one = replace(request("a", prompt(29), GREEDY, max_tokens=48), speculation=wanted)
    bench.run(one).proven("qwen4_exp", one)
    repairs = bench.stats("a").drafters["tiny"].repairs
    assert repairs[repair] > 2
    pending = max(window.pending for window in bench.windows if window.draft_n)
    assert (pending > 1) == (repair == "restore")


@pytest.mark.parametrize("token", [8, 15])
def test_windows_at_the_beginning_of_a_text_are_stepped_back(token: int) -> None:
    """Such windows are read token by token, by qwen4_exp's bodies."""
    bench = Bench(loop_of("qwen4_exp", noisy("qwen4_exp", 0.3)))
    wanted = Speculation(DRAFT, DraftLength.exactly(1))
    one = replace(request("a", (token,), GREEDY, max_tokens=6), speculation=wanted)
    bench.run(one).proven("qwen4_exp", one)
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
    bench.run(turn)
    bench.run(other)
    bench.proven(name, turn, other)
    # states and pools are stored where an answer and a prompt end, but for their newest token
    assert bench.stats("c").cached_n == len(tokens) - 4
    assert bench.stats("d").cached_n >= len(first.tokens) - 1
