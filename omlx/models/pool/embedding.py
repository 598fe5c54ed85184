"""A text on its way to one vector: its tokens are read a chunk at a time, so that others' steps come in between.

The vector is made of the model's last hidden states, those that its head would turn into logits.
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
"""What mlx-lm's models call the part of them that ends in hidden states."""


@dataclass(slots=True)
class Embedding:
    """`tokens` (ids, at least one) become `vector`, which is None until they have all been read."""

    tokens: Sequence[int]
    mode: PoolingMode
    vector: tuple[float, ...] | None = None
    _read: int = 0
    _cache: Cache = field(default_factory=list)
    _sum: mx.array | None = None

    def advance(self, loop: EngineLoop) -> bool:
        """Read the next chunk; True at the end. On the engine thread.

        Raises BadRequest for a model that does not show its hidden states.
        """
        read = hidden_states(loop.runner.model)
        if not self._read:
            self._cache = loop.make_cache()
        part = self.tokens[self._read : self._read + loop.limits.prefill_slice]
        states = read(mx.array([part], mx.uint32), self._cache)[0].astype(
            mx.float32
        )  # [tokens, hidden]
        self._read += len(part)
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
    """A function from ids [1, tokens] and a cache to hidden states [1, tokens, hidden]. Raises BadRequest."""
    body = model.get(HIDDEN) if isinstance(model, nn.Module) else None
    if not isinstance(body, nn.Module) or not callable(body):
        raise BadRequest("embedding.architecture", param="model")

    def read(tokens: mx.array, cache: Cache) -> mx.array:
        states = body(tokens, cache=cache)
        if not isinstance(states, mx.array) or states.ndim != 3:
            raise BadRequest("embedding.architecture", param="model")
        return states

    return read
