"""What the engine requires of a model: one call. Every text model of mlx-lm provides it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, cast

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


def cache_maker(model: Model) -> MakeCache:
    """Return a function that makes empty caches of the model's own kind."""
    return cast(MakeCache, partial(make_prompt_cache, cast(Any, model)))


def merge_caches(caches: Sequence[Cache]) -> list[Any]:
    """Return one batch cache per layer, rows in the order of `caches`, which are not modified."""
    batch: list[Any] = []
    for layers in zip(*caches, strict=True):
        first: Any = layers[0]
        batch.append(type(first).merge(list(layers)))
    return batch
