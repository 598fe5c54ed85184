"""Rows share a batch only where merging loses nothing."""

from __future__ import annotations

from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models.cache import KVCache, RotatingKVCache

from omlx.engine.device.batch_probe import batching_refusal, uneven_refusal
from omlx.engine.types import run_through
from omlx.errors import Reason
from tests import zoo


def reason(model: nn.Module) -> Reason | None:
    return run_through(batching_refusal(model, partial(zoo.make_cache, model), zoo.VOCAB_SIZE))


def uneven_reason(model: nn.Module) -> Reason | None:
    return run_through(uneven_refusal(model, partial(zoo.make_cache, model), zoo.VOCAB_SIZE))


@pytest.mark.parametrize(
    "name", ["llama", "gemma3_text", "qwen3_next", "falcon_h1", "recurrent_gemma", "qwen2_vl"]
)
def test_rows_share_a_batch(name: str) -> None:
    assert reason(zoo.build(name)) is None


@pytest.mark.parametrize(
    ("name", "layer"), [("llama_concatenate", "ConcatenateKVCache"), ("llama4", "ChunkedKVCache")]
)
def test_a_cache_that_does_not_merge_is_named(name: str, layer: str) -> None:
    assert reason(zoo.build(name)) == Reason("batch.off.no_merge", {"layer": layer})


def test_a_sliding_cache_that_keeps_its_first_tokens_is_refused() -> None:
    model = zoo.build("llama")
    model.make_cache = lambda: [RotatingKVCache(max_size=16, keep=4) for _ in model.layers]
    assert reason(model) == Reason("batch.off.keep", {"layer": "RotatingKVCache"})


@pytest.mark.parametrize("name", ["gemma2", "afm7"])
def test_a_model_that_reads_the_batch_wrongly_is_found(name: str) -> None:
    assert reason(zoo.build(name)) == Reason("batch.off.probe", {"error": "merged rows differ"})


def test_a_model_that_cannot_take_a_batch_is_found() -> None:
    found = reason(zoo.build("gpt_bigcode"))
    assert found is not None
    assert found.code == "batch.off.probe"
    assert str(found.params["error"]).startswith("ValueError")


def test_a_model_whose_fault_shows_on_long_rows_only_is_known_by_name() -> None:
    found = reason(zoo.build("minimax_m3_vl"))
    assert found is not None
    assert found.code == "batch.off.probe"


class Shuffled(KVCache):
    """Merges, but in the wrong order."""

    @classmethod
    def merge(cls, caches: list[Any]) -> Any:
        return KVCache.merge(caches[::-1])


def test_a_merge_that_mixes_rows_up_is_found() -> None:
    model = zoo.build("llama")
    model.make_cache = lambda: [Shuffled() for _ in model.layers]
    assert reason(model) == Reason("batch.off.probe", {"error": "merged rows differ"})


def test_sixteen_bit_weights_pass_within_their_rounding() -> None:
    model = zoo.build("llama")
    model.set_dtype(mx.bfloat16)
    assert reason(model) is None


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "qwen3_next", "falcon_h1", "deepseek_v3"])
def test_rows_of_a_batch_draft(name: str) -> None:
    assert uneven_reason(zoo.build(name)) is None


@pytest.mark.parametrize("name", ["recurrent_gemma", "nemotron_h"])
def test_recurrent_layers_that_read_padding_are_found(name: str) -> None:
    error = "rows differ after one was rolled back"
    assert uneven_reason(zoo.build(name)) == Reason("batch.off.uneven", {"error": error})


def test_a_layer_that_cannot_roll_back_one_row_is_named() -> None:
    error = "ConcatenateKVCache cannot roll back one row"
    found = uneven_reason(zoo.build("llama_concatenate"))
    assert found == Reason("batch.off.uneven", {"error": error})
