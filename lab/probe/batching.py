"""Batching: logits of every row must equal those of the row alone, in windows of any lengths."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache

from lab.probe.reference import Row, window
from omlx.engine.device import ragged
from omlx.engine.device.rewind import leaves
from tests import zoo

DECODED = 4
"""Tokens decoded between two changes of a batch."""


class Batch:
    """Rows that share a cache. It holds `at[i]` tokens of row i; `gap` is the largest difference so
    far.
    """

    def __init__(self, rows: Sequence[Row], caches: Sequence[list[Any]], at: Sequence[int]) -> None:
        self.model, self.rows, self.at = rows[0].model, list(rows), list(at)
        self.cache = ragged.merge_caches(caches)
        self.gap = 0.0

    def decode(self, steps: int = DECODED) -> None:
        for _ in range(steps):
            logits = self.model(window(self.rows, self.at), cache=self.cache)
            gaps = [
                row.gap(at, each) for row, at, each in zip(self.rows, self.at, logits, strict=True)
            ]
            self.gap = max(self.gap, *gaps)
            self.at = [at + 1 for at in self.at]

    def join(self, row: Row, cache: list[Any], at: int) -> None:
        for layer, joining in zip(self.cache, ragged.merge_caches([cache]), strict=True):
            layer.extend(joining)
        self.rows.append(row)
        self.at.append(at)

    def keep(self, indices: list[int]) -> None:
        for layer in self.cache:
            layer.filter(indices)
        self.rows = [self.rows[i] for i in indices]
        self.at = [self.at[i] for i in indices]

    def leave_with_cache(self, index: int) -> None:
        """Take one row out and decode it alone."""
        cache, row, at = (
            [layer.extract(index) for layer in self.cache],
            self.rows[index],
            self.at[index],
        )
        for position in range(at, at + DECODED):
            self.gap = max(self.gap, row.read(position, position + 1, cache))
        # A window of several tokens, as a verification reads them.
        self.gap = max(self.gap, row.read(at + DECODED, at + DECODED + 5, cache))


def life(rows: Sequence[Row], lengths: tuple[int, int, int] = (21, 7, 12)) -> float:
    """Merge two rows, decode, add a third, remove the first, extract another. Returns the largest
    gap.
    """
    caches = _alone(rows, lengths)
    batch = Batch(rows[:2], caches[:2], lengths[:2])
    batch.decode()
    batch.join(rows[2], caches[2], lengths[2])
    batch.decode()
    batch.keep([1, 2])
    batch.decode()
    batch.leave_with_cache(0)
    batch.keep([1])
    batch.decode()
    return batch.gap


def long_life(rows: Sequence[Row]) -> float:
    """Decode rows past a window of 16 while they share the batch. Returns the largest gap."""
    batch = Batch(rows[:2], _alone(rows[:2], (3, 14)), (3, 14))
    batch.decode(30)
    batch.leave_with_cache(1)
    batch.keep([0])
    batch.decode()
    batch.leave_with_cache(0)
    return batch.gap


def _alone(rows: Sequence[Row], lengths: Sequence[int]) -> list[list[Any]]:
    """Return a cache per row that holds its first `lengths[i]` tokens, computed in one pass."""
    caches = [zoo.make_cache(row.model) for row in rows]
    for row, cache, length in zip(rows, caches, lengths, strict=True):
        if length:
            row.read(0, length, cache)
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
    caches = [zoo.make_cache(model) for _ in rows]
    for row, cache, length in zip(rows, caches, lengths, strict=True):
        row.read(0, length, cache)
    batch: list[Any] = ragged.merge_caches(caches)
    members = range(len(rows))
    recurrent = any(isinstance(leaf, ArraysCache) for leaf in leaves(batch))
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
        marked = ragged.mark(batch, members)
        ragged.prepare(batch, widths)
        padded = [window + [0] * (max(widths) - len(window)) for window in windows]
        logits = model(mx.array(padded), cache=batch)
        ragged.finalize(batch, widths)
        for i, row in enumerate(rows):
            gap = max(gap, row.gap(computed[i], logits[i, : right[i]]))
            known[i] += accepted[i] + 1
            if right[i] == widths[i]:
                computed[i] += widths[i]
                continue
            computed[i] += 0 if recurrent else right[i]
            if rolls:
                ragged.rewind(batch, members, i, computed[i], marked)
    for i, row in enumerate(rows):
        single = [layer.extract(i) for layer in batch]
        gap = max(gap, row.read(computed[i], known[i] + 3, single))
    return gap
