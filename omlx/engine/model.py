"""What the engine requires of a model: one call. Every text model of mlx-lm provides it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol, cast

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache


class LayerCache(Protocol):
    """What all cache classes of mlx-lm have in common."""

    @property
    def state(self) -> Any: ...

    @property
    def nbytes(self) -> int: ...


Cache = list[LayerCache]
"""One cache per layer."""

MakeCache = Callable[[], Cache]

_POSITIONS: Final = ("wpe", "position")
"""Parts of the names of embeddings that are indexed by position, not by token id."""


class Model(Protocol):
    def __call__(self, inputs: mx.array, /, *, cache: Cache) -> mx.array:
        """Return logits [rows, tokens, V] of ids [rows, tokens]. Appends them to the cache."""
        ...


def weight_bytes(model: Model) -> int:
    """Bytes of a model's parameters: what a pass reads at most. 0 if it has none."""
    if not isinstance(model, nn.Module):
        return 0
    parameters = cast(list[tuple[str, mx.array]], tree_flatten(model.parameters()))
    return sum(array.nbytes for _, array in parameters)


def float_bytes(model: Model) -> int:
    """Return the bytes of a float in most of a model's parameters: its passes compute in those."""
    if not isinstance(model, nn.Module):
        return mx.float32.size
    parameters = cast(list[tuple[str, mx.array]], tree_flatten(model.parameters()))
    floats = [array for _, array in parameters if mx.issubdtype(array.dtype, mx.floating)]
    sizes = Counter[int]()
    for array in floats:
        sizes[array.dtype.size] += array.size
    return max(sizes, key=sizes.__getitem__, default=mx.float32.size)


def id_limit(model: Model, make_cache: MakeCache) -> int:
    """Return the first token id that the model has no row for, in an embedding or in its logits.

    mlx checks no bounds: a greater id reads and writes beyond the array. Tokenizers of fine-tuned
    and text-only checkpoints have such ids.
    """
    logits = model(mx.zeros((1, 1), mx.uint32), cache=make_cache())  # [1, 1, V], never evaluated
    modules = model.named_modules() if isinstance(model, nn.Module) else []
    rows = [
        module.weight.shape[0]
        for name, module in modules
        if isinstance(module, nn.Embedding | nn.QuantizedEmbedding)
        and not any(part in name for part in _POSITIONS)
    ]
    return min([logits.shape[-1], *rows])


def cache_maker(model: Model) -> MakeCache:
    """Return a function that makes empty caches of the model's own kind."""
    return cast(MakeCache, partial(make_prompt_cache, cast(Any, model)))
