"""Embeddings: one vector per text, pooled from the last hidden states of the model.

Tokens are read in chunks, so that engine steps of other requests run in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

import mlx.core as mx
import mlx.nn as nn

from omlx.errors import BadRequest
from omlx.models.package.pooling import PoolingMode

if TYPE_CHECKING:
    from omlx.engine.loop import EngineLoop
    from omlx.engine.model import Cache, Model

HIDDEN: Final = "model"
"""Attribute of an mlx-lm model that returns hidden states instead of logits."""


@dataclass(slots=True)
class Embedding:
    """A text as token ids, at least one; `vector` is None until all have been read."""

    tokens: Sequence[int]
    mode: PoolingMode
    vector: tuple[float, ...] | None = None
    _read: int = 0
    _cache: Cache = field(default_factory=list)
    _sum: mx.array | None = None

    def advance(self, loop: EngineLoop) -> bool:
        """Read the next chunk; return whether it was the last. Call it on the engine thread.

        Raises BadRequest for a model whose hidden states are not accessible.
        """
        read = hidden_states(loop.runner.model)
        if not self._read:
            self._cache = loop.runner.make_cache()
        chunk = self.tokens[self._read : self._read + loop.limits.prefill_slice]
        states = read(mx.array([chunk], mx.uint32), self._cache)[0]  # [tokens, hidden]
        states = states.astype(mx.float32)
        self._read += len(chunk)
        pooled = states[-1] if self.mode == "last" else states.sum(axis=0)
        self._sum = pooled if self._sum is None or self.mode == "last" else self._sum + pooled
        mx.eval(self._sum, [layer.state for layer in self._cache])
        if self._read < len(self.tokens):
            return False
        mean = self._sum / len(self.tokens) if self.mode == "mean" else self._sum
        self.vector = tuple(cast(list[float], mean.tolist()))
        self._cache, self._sum = [], None
        return True


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
