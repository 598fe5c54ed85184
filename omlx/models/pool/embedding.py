"""Embeddings: one vector per text, pooled from the last hidden states of the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, cast

import mlx.core as mx
import mlx.nn as nn

from omlx.errors import BadRequest
from omlx.models.package.pooling import PoolingMode
from omlx.models.pool.text_pass import TextPass

if TYPE_CHECKING:
    from omlx.engine.model import Cache, Model

HIDDEN: Final = "model"
"""Attribute of an mlx-lm model that returns hidden states instead of logits."""


class Embedding(TextPass):
    """A text as token ids, at least one; `vector` is empty until all have been read."""

    def __init__(self, tokens: Sequence[int], mode: PoolingMode) -> None:
        super().__init__(tokens)
        self.vector: tuple[float, ...] = ()
        self._mode = mode
        self._sum: mx.array | None = None

    def restart(self) -> None:
        super().restart()
        self._sum = None

    def read(self, model: Model, tokens: mx.array, cache: Cache) -> mx.array:
        """Raises BadRequest for a model whose hidden states are not accessible."""
        states = hidden_states(model)(tokens, cache)[0].astype(mx.float32)  # [tokens, hidden]
        if self._mode == "last":
            return states[-1]
        total = states.sum(axis=0)
        self._sum = total if self._sum is None else self._sum + total
        mx.eval(self._sum)  # else the states of all chunks stay in memory
        return self._sum

    def finish(self, result: mx.array) -> None:
        mean = result / len(self.tokens) if self._mode == "mean" else result
        self.vector = tuple(cast(list[float], mean.tolist()))
        self._sum = None


def hidden_states(model: Model) -> Callable[[mx.array, Cache], mx.array]:
    """Return a function from ids [1, tokens] and a cache to hidden states [1, tokens, hidden].

    Raises BadRequest for a model that has none, or whose results have another shape.
    """
    body = model.get(HIDDEN) if isinstance(model, nn.Module) else None
    if not isinstance(body, nn.Module) or not callable(body):
        raise BadRequest("embedding.architecture", param="model")

    def read(tokens: mx.array, cache: Cache) -> mx.array:
        states = body(tokens, cache=cache)
        if not isinstance(states, mx.array) or states.ndim != 3:
            raise BadRequest("embedding.architecture", param="model")
        return states

    return read
