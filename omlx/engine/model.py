"""What the engine asks of a model: one call. Every text model of mlx-lm answers it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, cast

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache


class LayerCache(Protocol):
    """What every cache class of mlx-lm has."""

    @property
    def state(self) -> Any: ...

    @property
    def nbytes(self) -> int: ...


Cache = list[LayerCache]
MakeCache = Callable[[], Cache]


class Model(Protocol):
    def __call__(self, inputs: mx.array, /, *, cache: Cache) -> mx.array:
        """Logits [rows, tokens, V] for ids [rows, tokens]; the cache takes in the tokens."""
        ...


def weight_bytes(model: Model) -> int:
    """Bytes that a pass reads at most; 0 for what has no weights."""
    if not isinstance(model, nn.Module):
        return 0
    return sum(
        array.nbytes
        for _, array in cast(list[tuple[str, mx.array]], tree_flatten(model.parameters()))
    )


def cache_maker(model: Model) -> MakeCache:
    """A function that makes empty caches of the model's own kind."""
    return cast(MakeCache, partial(make_prompt_cache, cast(Any, model)))
