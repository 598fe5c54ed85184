"""The subject of a measurement: a model, its draft, and the token ids of its prompts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, cast

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map
from mlx_lm import load
from mlx_lm.models.switch_layers import QuantizedSwitchLinear

from lab.bench.console import Json
from lab.bench.workloads import encode
from omlx.engine.build import build_loop
from omlx.engine.loop import EngineLoop
from omlx.engine.types import Limits
from omlx.models.pool.opening import Dtype, cast_weights

GROUP_SIZE: Final = 64
"""Weights — share a scale when quantized."""

QUANTIZED: Final = (nn.QuantizedLinear, nn.QuantizedEmbedding, QuantizedSwitchLinear)
WORD_BITS: Final = 32
"""Bits — words into which quantized modules pack weights."""


@dataclass(frozen=True)
class Subject:
    """`stop_ids` end an answer; `names` are the directory names of model and draft."""

    model: Any
    draft: Any | None
    vocab_size: int
    stop_ids: frozenset[int]
    prompts: Sequence[tuple[int, ...]]
    names: tuple[str, ...] = ("model", "draft")
    tokenizer: Any = None

    @cached_property
    def loop(self) -> EngineLoop:
        """Engine without a prefix cache: every run computes its prompts."""
        return self.new_loop(prefix_bytes=0)

    def new_loop(self, prefix_bytes: int) -> EngineLoop:
        """Return a new engine with a prefix cache of `prefix_bytes`."""
        limits = Limits(context_length=1 << 20, max_rows=64, prefix_bytes=prefix_bytes)
        return build_loop(self.model, self.vocab_size, limits, draft=self.draft)

    def describe(self) -> Json:
        model_name, draft_name = self.names
        described: Json = {"model": _describe(self.model, model_name)}
        if self.draft is not None:
            described["draft"] = _describe(self.draft, draft_name)
        return described


def read_subject(
    model_dir: Path,
    draft_dir: Path | None,
    *,
    dtype: Dtype = "auto",
    grow: Callable[[Any, Any | None], None] | None = None,
    workload: str = "edit",
    bits: int | None = None,
) -> Subject:
    """Load a model and its draft.

    In this order: `dtype` converts both models' weights as the server does, `grow(model, draft)`
    may change them, `bits` quantizes them. Raises ValueError if the vocabularies differ.
    """
    model, tokenizer, config = _load(model_dir)
    cast_weights(model, config, dtype)
    vocabulary = tokenizer.get_vocab()
    draft = None
    if draft_dir is not None:
        draft, draft_tokenizer, draft_config = _load(draft_dir)
        cast_weights(draft, draft_config, dtype)
        if draft_tokenizer.get_vocab() != vocabulary:
            raise ValueError(
                f"{draft_dir} has another vocabulary than {model_dir}: it cannot draft for it"
            )
    loaded = [model] if draft is None else [model, draft]
    if grow is not None:
        grow(model, draft)
    if bits is not None:
        for network in loaded:
            _quantize(network, bits)
    mx.eval([network.parameters() for network in loaded])
    return Subject(
        model=model,
        draft=draft,
        vocab_size=max(vocabulary.values()) + 1,
        stop_ids=frozenset(tokenizer.eos_token_ids),
        prompts=encode(tokenizer, workload),
        names=(model_dir.name, draft_dir.name if draft_dir else ""),
        tokenizer=tokenizer,
    )


def _load(folder: Path) -> tuple[Any, Any, dict[str, Any]]:
    return cast(tuple[Any, Any, dict[str, Any]], load(str(folder), return_config=True))


def untrained(model: Any | None) -> Any | None:
    """Return a copy with random weights; None for None."""
    if model is None:
        return None
    copied = copy.deepcopy(model)
    keys = iter(mx.random.split(mx.random.key(0), 10_000))
    copied.update(tree_map(lambda weight: _noise(weight, next(keys)), copied.parameters()))
    mx.eval(copied.parameters())
    return copied


def parameter_count(model: nn.Module) -> int:
    """Return the number of weights. Quantized ones count unpacked, without scales and biases."""
    count = sum(array.size for _, array in flat_parameters(model))
    for module in model.modules():
        if isinstance(module, QUANTIZED):
            names = [name for name in ("weight", "scales", "biases") if name in module]
            packed, *others = [module[name].size for name in names]
            # The sum above has counted packed words, scales and biases.
            count += packed * WORD_BITS // module.bits - packed - sum(others)
    return count


def flat_parameters(model: nn.Module) -> list[tuple[str, mx.array]]:
    return cast(list[tuple[str, mx.array]], tree_flatten(model.parameters()))


def _noise(weight: mx.array, key: mx.array) -> mx.array:
    """Return noise for a matrix; norms (one dimension) and packed integers stay."""
    if weight.ndim < 2 or not mx.issubdtype(weight.dtype, mx.floating):
        return weight
    scale: float = weight.shape[-1] ** -0.5
    return mx.random.normal(weight.shape, weight.dtype, scale=scale, key=key)


def _quantize(model: Any, bits: int) -> None:
    """Quantize in place every matrix that divides into groups of `GROUP_SIZE`."""

    def divides(_: str, module: Any) -> bool:
        return hasattr(module, "to_quantized") and module.weight.shape[-1] % GROUP_SIZE == 0

    nn.quantize(model, group_size=GROUP_SIZE, bits=bits, class_predicate=divides)


def _describe(model: Any, name: str) -> Json:
    dtypes = {str(array.dtype).removeprefix("mlx.core.") for _, array in flat_parameters(model)}
    return {
        "name": name,
        "architecture": type(model).__module__.rpartition(".")[2],
        "parameters": parameter_count(model),
        "layers": len(model.layers),
        "dtype": sorted(dtypes),
    }
