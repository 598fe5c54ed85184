"""Batching: logits of every row must equal those of the row alone, in windows of any lengths."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache

from lab.probe.reference import Row, window
from omlx.engine.device.ragged import RowsCache
from omlx.engine.device.rewind import leaves
from tests import zoo

DECODED = 4
"""Tokens decoded between two changes of a batch."""


class Batch:
    """`rows` that share the `cache`, by their numbers; `gap` is the largest difference so far."""

    def __init__(self, rows: Sequence[Row], cache: RowsCache) -> None:
        self.rows, self.cache, self.gap = rows, cache, 0.0

    def decode(self, steps: int = DECODED) -> None:
        for _ in range(steps):
            at = list(self.cache.lengths.values())
            rows = [self.rows[number] for number in self.cache.lengths]
            logits = self.cache.read(
                [1] * len(at), partial(_logits, rows[0].model, window(rows, at))
            )
            gaps = [row.gap(*place) for row, *place in zip(rows, at, logits, strict=True)]
            self.gap = max(self.gap, *gaps)

    def leave_with_cache(self, number: int) -> None:
        """Take one row out and decode it alone."""
        at, row = self.cache.lengths[number], self.rows[number]
        cache = self.cache.extract(number).layers
        for position in range(at, at + DECODED):
            self.gap = max(self.gap, row.read(position, position + 1, cache))
        # A window of several tokens, as a verification reads them.
        self.gap = max(self.gap, row.read(at + DECODED, at + DECODED + 5, cache))


def _logits(model: Any, tokens: mx.array, layers: list[Any]) -> mx.array:
    return model(tokens, cache=layers)


def life(rows: Sequence[Row], lengths: tuple[int, int, int] = (21, 7, 12)) -> float:
    """Merge two rows, decode, add a third, remove the first, extract another. Returns the largest
    gap.
    """
    cache, *others = _alone(rows, lengths)
    batch = Batch(rows, cache)
    cache.join(others[:1])
    batch.decode()
    cache.join(others[1:])
    batch.decode()
    cache.filter([1, 2])
    batch.decode()
    batch.leave_with_cache(1)
    cache.filter([2])
    batch.decode()
    return batch.gap


def long_life(rows: Sequence[Row]) -> float:
    """Decode rows past a window of 16 while they share the batch. Returns the largest gap."""
    cache, other = _alone(rows[:2], (3, 14))
    batch = Batch(rows, cache)
    cache.join([other])
    batch.decode(30)
    batch.leave_with_cache(1)
    cache.filter([0])
    batch.decode()
    batch.leave_with_cache(0)
    return batch.gap


def _alone(rows: Sequence[Row], lengths: Sequence[int]) -> list[RowsCache]:
    """Return a cache per row that holds its first `lengths[i]` tokens, computed in one pass."""
    caches = []
    for number, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        caches.append(RowsCache(number, zoo.make_cache(row.model), length))
        if length:
            row.read(0, length, caches[-1].layers)
    return caches


LONGEST_DRAFT = 6
MOST_PENDING = 12


def uneven_rounds(
    rows: Sequence[Row], lengths: Sequence[int] = (21, 7, 12), seed: int = 0, *, rolls: bool = True
) -> float:
    """Draft in rows of `lengths` tokens until one is at its end; extract them. Returns the largest
    gap.

    Every round each row reads its pending tokens and a draft of its own whose first tokens are
    right. It is rolled back for itself: to the accepted tokens, or, where a layer is recurrent, to
    the start of its window, and the accepted tokens stay pending.

    Without `rolls`, rejected tokens stay in the cache: a fault that must be found.
    """
    rng, model = random.Random(seed), rows[0].model
    batch, *others = _alone(rows, lengths)
    batch.join(others)
    recurrent = any(isinstance(leaf, ArraysCache) for leaf in leaves(batch.layers))
    computed, known, gap = list(lengths), [length + 1 for length in lengths], 0.0
    while max(known) < len(rows[0].tokens) - LONGEST_DRAFT - 1:
        windows, accepted, right = [], [], []
        for i, row in enumerate(rows):
            full = known[i] - computed[i] > MOST_PENDING
            drafted = 0 if full else rng.choice((0, 0, 1, 2, 4, LONGEST_DRAFT))
            accepted.append(rng.randint(0, drafted))
            right.append(known[i] - computed[i] + accepted[i])
            wrong = range(known[i] + accepted[i], known[i] + drafted)
            windows.append(
                row.tokens[computed[i] : computed[i] + right[i]]
                + [(row.tokens[at] + 1) % zoo.VOCAB_SIZE for at in wrong]
            )
        widths = [len(window) for window in windows]
        batch.forget_marks()
        batch.mark()
        padded = [window + [0] * (max(widths) - len(window)) for window in windows]
        logits = batch.read(widths, partial(_logits, model, mx.array(padded)))
        for i, row in enumerate(rows):
            gap = max(gap, row.gap(computed[i], logits[i, : right[i]]))
            known[i] += accepted[i] + 1
            if right[i] == widths[i]:
                computed[i] += widths[i]
                continue
            computed[i] += 0 if recurrent else right[i]
            if rolls:
                batch.rewind(i, computed[i])
    for i, row in enumerate(rows):
        gap = max(gap, row.read(computed[i], known[i] + 3, batch.extract(i).layers))
    return gap
