"""Judgements: the probability that a model answers yes rather than no after a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING, cast

import mlx.core as mx

from omlx.errors import NonFiniteLogits
from omlx.models.pool.text_pass import TextPass

if TYPE_CHECKING:
    from omlx.engine.model import Cache, Model


class Judgement(TextPass):
    """A prompt as token ids, and those of the answers; `score` is in [0, 1] once it is read."""

    def __init__(self, tokens: Sequence[int], yes: int, no: int) -> None:
        super().__init__(tokens)
        self.score = 0.0
        self._answers = yes, no

    def read(self, model: Model, tokens: mx.array, cache: Cache) -> mx.array:
        logits = model(tokens, cache=cache)[0, -1]  # [vocab], evaluated after the last chunk only
        return mx.softmax(logits[mx.array(self._answers)].astype(mx.float32))[0]

    def finish(self, result: mx.array) -> None:
        """Raises NonFiniteLogits."""
        self.score = cast(float, result.item())
        if not isfinite(self.score):
            raise NonFiniteLogits("engine.not_finite")
