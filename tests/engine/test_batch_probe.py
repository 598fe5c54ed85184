"""Models whose rows share a batch, and models with quantized KV caches; why others have neither."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, QuantizedKVCache, RotatingKVCache

from omlx.engine.build import build_loop
from omlx.engine.device.batch_probe import batching_refusal, uneven_refusal
from omlx.engine.device.facts import facts_of, kv_refusal, probed
from omlx.engine.device.model import GROUP, cache_maker, quantized
from omlx.engine.memory import MemoryGuard
from omlx.engine.types import run_through
from omlx.errors import Reason
from omlx.models.pool.load_weights import probe
from tests import zoo
from tests.engine.harness import LIMITS, Bench, prompt, request
from tests.zoo.build import build_family


def reason(model: nn.Module) -> Reason | None:
    return run_through(batching_refusal(model, partial(zoo.make_cache, model), zoo.VOCAB_SIZE))


def uneven_reason(model: nn.Module) -> Reason | None:
    return run_through(uneven_refusal(model, partial(zoo.make_cache, model), zoo.VOCAB_SIZE))


DIFFER = {"error": "merged rows differ"}
SHARED = ("llama", "gemma3_text", "qwen3_next", "falcon_h1", "recurrent_gemma", "qwen2_vl")
REASONS = {
    **dict.fromkeys(SHARED),
    "llama_concatenate": Reason("batch.off.no_merge", {"layer": "ConcatenateKVCache"}),
    "llama4": Reason("batch.off.no_merge", {"layer": "ChunkedKVCache"}),
    **dict.fromkeys(("gemma2", "afm7"), Reason("batch.off.probe", DIFFER)),
}


@pytest.mark.parametrize("name", REASONS)
def test_rows_share_a_batch_or_not_for_a_reason(name: str) -> None:
    assert reason(zoo.build(name)) == REASONS[name]


def test_a_sliding_cache_that_keeps_its_first_tokens_is_refused() -> None:
    model = zoo.build("llama")
    model.make_cache = lambda: [RotatingKVCache(max_size=16, keep=4) for _ in model.layers]
    assert reason(model) == Reason("batch.off.keep", {"layer": "RotatingKVCache"})


@pytest.mark.parametrize(("name", "error"), [("gpt_bigcode", "ValueError"), ("minimax_m3_vl", "")])
def test_a_model_that_cannot_take_a_batch_is_found(name: str, error: str) -> None:
    """The second one's fault shows on long rows only: it is known by name."""
    found = reason(zoo.build(name))
    assert found.code == "batch.off.probe"
    assert str(found.params["error"]).startswith(error)


class Shuffled(KVCache):
    """Merges, but in the wrong order."""

    @classmethod
    def merge(cls, caches: list[Any]) -> Any:
        return KVCache.merge(caches[::-1])


def test_a_merge_that_mixes_rows_up_is_found() -> None:
    model = zoo.build("llama")
    model.make_cache = lambda: [Shuffled() for _ in model.layers]
    assert reason(model) == Reason("batch.off.probe", DIFFER)


def test_sixteen_bit_weights_pass_within_their_rounding() -> None:
    model = zoo.build("llama")
    model.set_dtype(mx.bfloat16)
    assert reason(model) is None


MOVES = ("llama", "gemma3_text", "qwen3_next", "falcon_h1", "deepseek_v3")
STUCK = "ConcatenateKVCache cannot roll back one row"
PADDED = "rows differ after one was rolled back"
"""Recurrent layers that read padding."""
UNEVEN = {
    **dict.fromkeys(MOVES),
    **dict.fromkeys(("recurrent_gemma", "nemotron_h"), PADDED),
    "llama_concatenate": STUCK,
}


@pytest.mark.parametrize("name", UNEVEN)
def test_rows_of_a_batch_draft_or_not_for_a_reason(name: str) -> None:
    error = UNEVEN[name]
    expected = None if error is None else Reason("batch.off.uneven", {"error": error})
    assert uneven_reason(zoo.build(name)) == expected


def wide(name: str) -> nn.Module:
    """A tiny model whose heads have a whole group of numbers."""
    family = zoo.FAMILIES[name]
    return build_family(replace(family, config={**family.config, "head_dim": 64}))


@pytest.mark.parametrize(
    ("model", "code", "params"),
    [
        (zoo.build("llama"), "kv.off.width", {"width": 16, "group": 32}),
        (zoo.build("recurrent_gemma"), "kv.off.layers", {"layers": "ArraysCache, RotatingKVCache"}),
        (wide("gpt_oss"), "kv.off.attention", {"error": "ValueError"}),
    ],
    ids=["width", "layers", "sinks"],
)
def test_a_model_without_them_says_why(model: Any, code: str, params: dict[str, object]) -> None:
    reason = kv_refusal(model, cache_maker(model), 8)
    assert reason.code == code
    for name, value in params.items():
        assert str(reason.params[name]).startswith(str(value))
    facts = facts_of(model, zoo.VOCAB_SIZE, cache_maker(model), 8)
    assert (facts.kv_bits, facts.no_kv_bits) == (None, reason)


@pytest.mark.parametrize("name", ["gemma3_text", "qwen3_next"])
def test_rows_share_a_batch_beside_layers_that_stay(name: str) -> None:
    model = wide(name)
    known = facts_of(model, zoo.VOCAB_SIZE, cache_maker(model), 4)
    facts = run_through(probed(known, model, cache_maker(model, known.kv_bits)))
    plain = run_through(probed(facts_of(model, 96, cache_maker(model)), model, cache_maker(model)))
    assert (facts.kv_bits, facts.unbatchable, facts.no_uneven) == (4, None, None)
    assert facts.layout.row_bytes * 32 == plain.layout.row_bytes * (4 + 2 * 32 / GROUP)
    kept = ("window_bytes", "window", "state_bytes")
    assert all(getattr(facts.layout, part) == getattr(plain.layout, part) for part in kept)


def test_a_first_pass_that_fails_fails_its_row_alone() -> None:
    """The memory guard counts what a row holds, of which an empty cache has none."""
    model = wide("llama")
    broken = Breaking(model)
    facts = run_through(probe(model, zoo.VOCAB_SIZE, 8))
    limits = replace(LIMITS, prefill_chunk=16, prefill_slice=8)
    guard = MemoryGuard(1 << 32, lambda: 0)
    loop = build_loop(broken, zoo.VOCAB_SIZE, limits, memory=guard, facts=facts)
    bench = Bench(loop, check=False)  # the pass ended between its layers
    bench.submit(request("a", prompt(20), max_tokens=40)).until(lambda: len(bench.tokens["a"]) > 2)
    broken.breaks = True
    bench.run(request("b", prompt(70), max_tokens=10))
    assert "b" in bench.failed
    assert len(bench.tokens["a"]) == 40


class Breaking:
    """A model whose passes over prompts raise from when `breaks` is set."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.breaks = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, tokens: mx.array, **more: Any) -> Any:
        if self.breaks and tokens.shape[1] > 4:
            raise RuntimeError("no kernel")
        return self._model(tokens, **more)


def test_parts_of_a_layer_are_quantized_each() -> None:
    layers: list[Any] = [KVCache(), RotatingKVCache(8), CacheList(ArraysCache(2), KVCache())]
    full, sliding, both = quantized(layers, 4)
    assert isinstance(full, QuantizedKVCache)
    assert sliding is layers[1]
    assert [type(part) for part in both.caches] == [ArraysCache, QuantizedKVCache]
