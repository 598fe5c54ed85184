"""Identity layers cost like layers and say nothing."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models.cache import make_prompt_cache

from omlx.bench.inflate import NotInflatable, flat, inflate, parameters
from tests.zoo import build


@pytest.mark.parametrize("name", ["llama", "lfm2", "gemma3_text", "falcon_h1"])
def test_a_model_grows_and_says_the_same(name: str) -> None:
    model, grown = build(name), build(name)
    wanted = 2 * parameters(model)
    added = inflate(grown, wanted)
    assert added > 0
    assert parameters(grown) >= wanted
    assert len(grown.layers) == len(model.layers) + added
    tokens = mx.arange(12)[None]
    caches = make_prompt_cache(model), make_prompt_cache(grown)
    assert len(caches[1]) == len(grown.layers)
    for each in (tokens, tokens[:, :1]):
        assert mx.array_equal(model(each, cache=caches[0]), grown(each, cache=caches[1]))


@pytest.mark.parametrize("name", ["llama", "qwen3_moe"])
@pytest.mark.parametrize("bits", [3, 4, 8])
def test_packed_weights_are_counted_one_by_one(name: str, bits: int) -> None:
    model = build(name)
    held = parameters(model)
    nn.quantize(model, group_size=32, bits=bits)
    assert any(array.dtype == mx.uint32 for _, array in flat(model))
    assert parameters(model) == held


def test_kinds_of_layers_stay_in_proportion() -> None:
    model = build("lfm2")
    kinds = [layer.is_attention_layer for layer in model.layers]
    inflate(model, 3 * parameters(model))
    grown = [layer.is_attention_layer for layer in model.layers]
    assert grown == (kinds * len(grown))[: len(grown)]


def test_identity_layers_have_weights_of_their_own() -> None:
    model = build("llama")
    before = len(model.layers)
    inflate(model, parameters(model) + 1)
    copied, original = model.layers[before].self_attn, model.layers[0].self_attn
    assert mx.array_equal(copied.q_proj.weight, original.q_proj.weight)
    assert copied.q_proj.weight is not original.q_proj.weight
    assert not mx.any(copied.o_proj.weight)


def test_large_enough_already() -> None:
    model = build("llama")
    assert inflate(model, 1) == 0


def test_a_layer_that_cannot_be_silenced_is_refused() -> None:
    model = build("recurrent_gemma")
    with pytest.raises(NotInflatable, match="output projections"):
        inflate(model, 2 * parameters(model))
