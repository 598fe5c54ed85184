"""Which models have quantized KV caches, and why others do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, QuantizedKVCache, RotatingKVCache

from omlx.engine.build import build_loop
from omlx.engine.device.facts import facts_of, kv_refusal, probed
from omlx.engine.device.kinds import GROUP, quantized
from omlx.engine.device.model import cache_maker
from omlx.engine.memory import MemoryGuard
from omlx.engine.types import run_through
from omlx.models.pool.load_weights import probe
from tests import zoo
from tests.engine.harness import LIMITS, Bench, prompt, request
from tests.zoo.build import build_family


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
    assert reason is not None
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
    bench.submit(request("a", prompt(20), max_tokens=40))
    bench.until(lambda: len(bench.tokens["a"]) > 2)
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
