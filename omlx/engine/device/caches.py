"""The KV caches of one loaded model: one per single row, one of the batch, and the saved pieces.

Carries out the cache operations of a plan. `lengths` counts the tokens that each row's cache holds;
the layers' own counters must agree, which `check` proves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from mlx_lm.models.cache import QuantizedKVCache

from omlx.engine.device import ragged
from omlx.engine.device.model import Cache, MakeCache
from omlx.engine.device.payloads import Payload, Payloads, assemble, read_payloads
from omlx.engine.device.ragged_cache import RaggedKVCache
from omlx.engine.device.rewind import Mark, leaves, length_of, mark, rewind
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
    """Caches by row: `batch` holds those of its `members`, in order, `single` all others."""

    unseen = 0.0

    def __init__(self, make_cache: MakeCache) -> None:
        self.single: dict[int, Cache] = {}
        self.batch: list[Any] = []
        self.members: list[int] = []
        self.lengths: dict[int, int] = {}
        self.kept = Payloads(make_cache)
        self._make_cache = make_cache
        self._loaded: dict[int, list[Payload]] = {}
        self._assembled: dict[int, list[Payload]] = {}  # by row, until its first pass
        self._marks: dict[int, Mark] = {}
        self._batch_mark: ragged.BatchMark | None = None

    def apply(self, op: CacheOp, loads: Mapping[int, Loaded] = MappingProxyType({})) -> None:
        """Carry out one operation, with records that were read from disk, by row.

        Raises RewindError if a cache cannot be rolled back.
        """
        match op:
            case Open(row=row):
                self.single[row], self.lengths[row] = self._make_cache(), 0
            case Restore(row=row, pieces=pieces, length=length, prompt=prompt):
                self.single[row] = self.kept.build(pieces, length, prompt)
                self.lengths[row] = length
            case Load(row=row):
                self._load(op, loads[row])
            case Rewind(row=row, length=length):
                self._rewind(row, length)
            case Merge(rows=rows):
                self._merge(rows)
            case Extract(row=row):
                index = self.members.index(row)
                self.single[row] = [layer.extract(index) for layer in self.batch]
            case Filter(keep=keep):
                self._filter(list(keep))
            case Save(row=row, pieces=saved):
                self.kept.keep(self.single[row], saved, self._assembled.pop(row, ()))
            case Drop(row=row):
                self.single.pop(row, None)
                self.lengths.pop(row, None)
                self._loaded.pop(row, None)
                self._assembled.pop(row, None)
                self._marks.pop(row, None)
            case Evict(pieces=pieces):
                self.kept.evict(pieces)

    @contextmanager
    def reading(self, forward: Forward, *, marked: bool) -> Iterator[Cache]:
        """Give the cache for a pass over a forward's windows, padded to the widest, and count it.

        If `marked`, windows with a draft can be rolled back in layers that cannot step back.
        """
        row, widths = forward.rows[0], [window.width for window in forward.windows]
        marked = marked and any(window.draft_n for window in forward.windows)
        if forward.batched and marked:
            self._batch_mark = ragged.mark(self.batch, self.members)
        elif marked:
            self._marks[row] = mark(self.single[row], self.lengths[row])
        for window in forward.windows:
            self.advance(window.row, window.width)
        if not forward.batched:
            yield self.single[row]
            return
        ragged.prepare(self.batch, widths)
        yield self.batch
        ragged.finalize(self.batch, widths)

    def forget_marks(self) -> None:
        """Drop every mark: a pass that writes in place would copy arrays that marks hold."""
        self._marks.clear()
        self._batch_mark = None

    def advance(self, row: int, tokens: int) -> None:
        self.lengths[row] += tokens
        self._assembled.pop(row, None)

    def row_bytes(self, row: int) -> int:
        """Bytes of a row's cache arrays, or its share of the batch's; 0 before its first pass."""
        if not self.lengths.get(row):
            return 0
        if row in self.members:
            return self._batch_bytes() // len(self.members)
        parts = leaves(self.single.get(row, ()))  # of a pass that failed, some may be empty
        return sum(part.nbytes for part in parts if not _lacks_bytes(part))

    @property
    def nbytes(self) -> int:
        """Bytes of all rows' caches, without the saved pieces."""
        return sum(map(self.row_bytes, self.single)) + self._batch_bytes()

    def check(self) -> None:
        """Raise AssertionError if a layer holds another number of tokens than `lengths` says."""
        for row, cache in self.single.items():
            held = length_of(cache)
            assert held is None or held == self.lengths[row], (row, held, self.lengths[row])
        assert len(set(self.members)) == len(self.members)
        lengths = [self.lengths[row] for row in self.members]
        for leaf in leaves(self.batch):
            if isinstance(leaf, RaggedKVCache):
                assert leaf.lengths == leaf.offset.tolist() == lengths, (leaf.lengths, lengths)

    def _load(self, op: Load, records: Loaded) -> None:
        """Copy records that were read from disk; with the last ones, build the row's cache."""
        loaded = self._loaded.setdefault(op.row, [])
        loaded += read_payloads(records)
        if op.length:
            self.single[op.row] = assemble(self._make_cache(), loaded, op.length, op.prompt)
            self.lengths[op.row] = op.length
            self._assembled[op.row] = loaded
        if op.length is not None:
            del self._loaded[op.row]

    def _batch_bytes(self) -> int:
        return sum(int(layer.nbytes) for layer in self.batch)

    def _rewind(self, row: int, length: int) -> None:
        if row in self.members:
            ragged.rewind(self.batch, self.members, row, length, self._batch_mark)
            self.lengths[row] = length
            return
        marks = [self._marks[row]] if row in self._marks else []
        reached = rewind(self.single[row], self.lengths[row], length, marks)
        if reached != length:
            detail = f"the cache went back to {reached}"
            raise RewindError("rewind.failed", length=length, detail=detail)
        self.lengths[row] = length

    def _merge(self, rows: tuple[int, ...]) -> None:
        merged = ragged.merge_caches([self.single.pop(row) for row in rows])
        if self.batch:
            for layer, joining in zip(self.batch, merged, strict=True):
                layer.extend(joining)
        else:
            self.batch = merged
        self.members.extend(rows)

    def _filter(self, keep: list[int]) -> None:
        if keep == self.members:
            return
        if keep:
            indices = [self.members.index(row) for row in keep]
            for layer in self.batch:
                layer.filter(indices)
        else:
            self.batch = []
        self.members = keep


def _lacks_bytes(part: Any) -> bool:
    """Whether `nbytes` would fail, as of an empty quantized cache."""
    return type(part) is QuantizedKVCache and part.keys is None
