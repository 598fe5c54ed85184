"""Texts read by an encoder: each token attends to all others, so a text is one pass."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING, cast

import mlx.core as mx

from omlx.errors import NonFiniteLogits
from omlx.models.package.pooling import PoolingMode
from omlx.models.pool.load_encoder import Classifier, Encoder
from omlx.models.pool.text_pass import ReadText

if TYPE_CHECKING:
    from omlx.engine.loop import EngineLoop
    from omlx.engine.memory.guard import MemoryGuard


class OnePass(ReadText):
    """A text whose tokens all attend to each other: no part of it can be read alone."""

    def restart(self) -> None:
        """There is nothing to forget."""

    def activations(self, loop: EngineLoop, tokens: int) -> int:
        return loop.chunk.activations.estimate(tokens, tokens) or 0


class Encoding(OnePass):
    """The vector of a text as token ids, at least one; empty until it is read."""

    def __init__(self, tokens: Sequence[int], mode: PoolingMode) -> None:
        super().__init__(tokens)
        self.vector: tuple[float, ...] = ()
        self._mode = mode

    def advance(self, loop: EngineLoop, memory: MemoryGuard) -> bool:
        if not self.admitted(loop, memory):
            return False
        model = cast(Encoder, loop.runner.model)
        states = model(mx.array([self.tokens])).last_hidden_state[0]  # [tokens, hidden]
        states = states.astype(mx.float32)
        pooled = {"cls": states[0], "last": states[-1], "mean": states.mean(axis=0)}[self._mode]
        self.vector = tuple(cast(list[float], pooled.tolist()))
        return True


class PairScore(OnePass):
    """The relevance of a document, read with the query by an encoder with a classifier.

    `types` are 1 for the tokens of the document where the tokenizer tells them apart. `score` is in
    [0, 1] once it is read.
    """

    def __init__(self, tokens: Sequence[int], types: Sequence[int]) -> None:
        super().__init__(tokens)
        self.score = 0.0
        self._types = types

    def advance(self, loop: EngineLoop, memory: MemoryGuard) -> bool:
        """Raises NonFiniteLogits."""
        if not self.admitted(loop, memory):
            return False
        model = cast(Classifier, loop.runner.model)
        logits = model(mx.array([self.tokens]), token_type_ids=mx.array([self._types])).logits
        self.score = cast(float, mx.sigmoid(logits[0, 0].astype(mx.float32)).item())
        if not isfinite(self.score):
            raise NonFiniteLogits("engine.not_finite")
        return True
