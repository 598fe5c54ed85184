"""Reference logits: a row computed alone, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import QuantizedKVCache

from tests import zoo

TOLERANCE = 1e-4
"""Largest difference of a logit, relative to the largest logit of the row's reference."""
QUANTIZED_TOLERANCE = 5e-3
"""As above, with quantized KV caches: two values within float rounding may take different steps."""


class Row:
    """Random tokens and their logits [tokens, V], computed one by one from an empty cache."""

    def __init__(self, model: nn.Module, tokens: int, seed: int) -> None:
        self.model = model
        self.tokens: list[int] = mx.random.randint(
            0, zoo.VOCAB_SIZE, (tokens,), key=mx.random.key(seed)
        ).tolist()
        cache = zoo.make_cache(model)
        self.logits = mx.concatenate(
            [model(mx.array([[token]]), cache=cache)[0] for token in self.tokens]
        )
        mx.eval(self.logits)
        self.scale = mx.abs(self.logits).max().item()
        quantized = any(isinstance(leaf, QuantizedKVCache) for leaf in cache)
        self.tolerance = QUANTIZED_TOLERANCE if quantized else TOLERANCE

    def read(self, start: int, end: int, cache: list[Any]) -> float:
        """Compute tokens [start, end) as one window. Returns the gap to the reference."""
        return self.gap(start, self.model(mx.array([self.tokens[start:end]]), cache=cache)[0])

    def gap(self, start: int, logits: mx.array) -> float:
        """Return the relative difference of `logits` [tokens, V] from the reference at `start`. NaN
        counts as infinite.
        """
        wanted = self.logits[start : start + logits.shape[0]]
        gap = mx.abs(logits.astype(mx.float32) - wanted).max().item() / self.scale
        return gap if gap == gap else float("inf")


def references(model: nn.Module) -> list[Row]:
    """Return three rows, several times longer than a window of 16."""
    return [Row(model, 72, seed) for seed in range(3)]


def window(rows: Sequence[Row], at: Sequence[int]) -> mx.array:
    """Return the token at position `at[i]` of each row: [rows, 1]."""
    return mx.array([[row.tokens[position]] for row, position in zip(rows, at, strict=True)])
