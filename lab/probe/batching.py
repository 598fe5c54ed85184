"""Batching: the logits of every row must equal those of the row alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lab.probe.reference import Row, window
from omlx.engine.device.ragged import merge_caches
from tests import zoo

DECODED = 4
"""Tokens decoded between two changes of a batch."""


class Batch:
    """Rows that share a cache. It holds `at[i]` tokens of row i; `gap` is the largest difference so
    far.
    """

    def __init__(self, rows: Sequence[Row], caches: Sequence[list[Any]], at: Sequence[int]) -> None:
        self.model, self.rows, self.at = rows[0].model, list(rows), list(at)
        self.cache = merge_caches(caches)
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
        for layer, joining in zip(self.cache, merge_caches([cache]), strict=True):
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
