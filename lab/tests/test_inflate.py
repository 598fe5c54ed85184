"""Identity layers cost like layers and change nothing."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models.cache import make_prompt_cache

from lab.bench.inflate import NotInflatable, inflate
from lab.bench.subject import flat_parameters, parameter_count
from tests.zoo import build


@pytest.mark.parametrize("name", ["llama", "lfm2", "gemma3_text", "falcon_h1"])
def test_a_model_grows_and_keeps_its_output(name: str) -> None:
    model, grown = build(name), build(name)
    wanted = 2 * parameter_count(model)
    added = inflate(grown, wanted)
    assert added > 0
    assert parameter_count(grown) >= wanted
    assert len(grown.layers) == len(model.layers) + added
    tokens = mx.arange(12)[None]
    caches = make_prompt_cache(model), make_prompt_cache(grown)
    assert len(caches[1]) == len(grown.layers)
    for inputs in (tokens, tokens[:, :1]):
        expected = model(inputs, cache=caches[0])
        assert mx.array_equal(expected, grown(inputs, cache=caches[1]))


@pytest.mark.parametrize("name", ["llama", "qwen3_moe"])
@pytest.mark.parametrize("bits", [3, 4, 8])
def test_packed_weights_are_counted_one_by_one(name: str, bits: int) -> None:
    model = build(name)
    held = parameter_count(model)
    nn.quantize(model, group_size=32, bits=bits)
    assert any(array.dtype == mx.uint32 for _, array in flat_parameters(model))
    assert parameter_count(model) == held


def test_kinds_of_layers_stay_in_proportion() -> None:
    model = build("lfm2")
    kinds = [layer.is_attention_layer for layer in model.layers]
    inflate(model, 3 * parameter_count(model))
    grown = [layer.is_attention_layer for layer in model.layers]
    assert grown == (kinds * len(grown))[: len(grown)]


def test_identity_layers_have_weights_of_their_own() -> None:
    model = build("llama")
    before = len(model.layers)
    inflate(model, parameter_count(model) + 1)
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
        inflate(model, 2 * parameter_count(model))
