"""The KV caches of one loaded model: one per single row, one of the batch, and the saved pieces.

Carries out the cache operations of a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import mlx.core as mx

from omlx.engine.device.model import Cache, MakeCache
from omlx.engine.device.payloads import Payload, Payloads, assemble, read_payloads
from omlx.engine.device.ragged import RowsCache
from omlx.engine.step.plan import (
    CacheOp,
    Drop,
    Evict,
    Extract,
    Filter,
    Forward,
    Load,
    Loaded,
    Merge,
    Open,
    Restore,
    Rewind,
    Save,
)
from omlx.errors import RewindError


class CacheTable:
    """Caches by row: `batch` is that of rows which share passes, `single` has all others."""

    unseen = 0.0

    def __init__(self, make_cache: MakeCache) -> None:
        self.single: dict[int, RowsCache] = {}
        self.batch: RowsCache | None = None
        self.kept = Payloads(make_cache)
        self._make_cache = make_cache
        self._loaded: dict[int, list[Payload]] = {}
        self._assembled: dict[int, list[Payload]] = {}  # by row, until its first pass

    @property
    def members(self) -> list[int]:
        """Rows of the batch, in order."""
        return [] if self.batch is None else list(self.batch.lengths)

    @property
    def lengths(self) -> dict[int, int]:
        """Tokens that each row's cache holds."""
        lengths = {} if self.batch is None else dict(self.batch.lengths)
        for cache in self.single.values():
            lengths |= cache.lengths
        return lengths

    def apply(self, op: CacheOp, loads: Mapping[int, Loaded] = MappingProxyType({})) -> None:
        """Carry out one operation, with records read from disk, by row.

        Raises RewindError if a cache cannot be rolled back.
        """
        match op:
            case Open(row=row):
                self.single[row] = RowsCache(row, self._make_cache())
            case Restore(row=row, pieces=pieces, length=length, prompt=prompt):
                self.single[row] = RowsCache(row, self.kept.build(pieces, length, prompt), length)
            case Load(row=row):
                self._load(op, loads[row])
            case Rewind(row=row, length=length):
                self._rewind(row, length)
            case Merge(rows=rows):
                joining = [self.single.pop(row) for row in rows]
                batch = self.batch or joining.pop(0)
                batch.join(joining)
                self.batch = batch
            case Extract(row=row):
                assert self.batch is not None
                self.single[row] = self.batch.extract(row)
            case Filter(keep=keep):
                if self.batch is not None and keep:
                    self.batch.filter(keep)
                else:
                    self.batch = None
            case Save(row=row, pieces=saved):
                layers = self.single[row].layers
                self.kept.keep(layers, saved, self._assembled.pop(row, ()))
            case Drop(row=row):
                self.single.pop(row, None)
                self._loaded.pop(row, None)
                self._assembled.pop(row, None)
            case Evict(pieces=pieces):
                self.kept.evict(pieces)

    def read(
        self, forward: Forward, run: Callable[[Cache], mx.array], *, marked: bool = False
    ) -> mx.array:
        """Return the outputs of a pass over a forward's windows, padded to the widest.

        If `marked`, windows with a draft can be rolled back in layers that cannot step back.
        """
        cache = self.batch if forward.batched else self.single[forward.rows[0]]
        assert cache is not None
        if marked and any(window.draft_n for window in forward.windows):
            cache.mark()
        for row in forward.rows:
            self._assembled.pop(row, None)
        return cache.read([window.width for window in forward.windows], run)

    def forget_marks(self) -> None:
        """Drop every mark."""
        for cache in self._all():
            cache.forget_marks()

    def row_bytes(self, row: int) -> int:
        """Bytes of a row's cache arrays, or its share of the batch's; 0 before its first pass."""
        if self.batch is not None and row in self.batch.lengths:
            return self.batch.nbytes // len(self.batch.lengths)
        cache = self.single.get(row)
        return cache.nbytes if cache is not None and cache.lengths[row] else 0

    @property
    def nbytes(self) -> int:
        """Bytes of all rows' caches, without the saved pieces."""
        return sum(cache.nbytes for cache in self._all())

    def check(self) -> None:
        """Raise AssertionError if a layer holds another number of tokens than `lengths` says."""
        for cache in self._all():
            cache.check()

    def _all(self) -> list[RowsCache]:
        return [*self.single.values(), *([] if self.batch is None else [self.batch])]

    def _load(self, op: Load, records: Loaded) -> None:
        """Copy records read from disk; with the last ones, build the row's cache."""
        loaded = self._loaded.setdefault(op.row, [])
        loaded += read_payloads(records)
        if op.length:
            layers = assemble(self._make_cache(), loaded, op.length, op.prompt)
            self.single[op.row] = RowsCache(op.row, layers, op.length)
            self._assembled[op.row] = loaded
        if op.length is not None:
            del self._loaded[op.row]

    def _rewind(self, row: int, length: int) -> None:
        in_batch = self.batch is not None and row in self.batch.lengths
        cache = self.batch if in_batch else self.single[row]
        assert cache is not None
        cache.rewind(row, length)
        if (reached := cache.lengths[row]) != length:
            detail = f"the cache went back to {reached}"
            raise RewindError("rewind.failed", length=length, detail=detail)
