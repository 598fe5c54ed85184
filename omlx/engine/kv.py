"""The caches of one loaded model: a cache for each single row, one shared by the rows of the batch, kept pieces.

Carries out the cache operations of a plan. `lengths` counts the tokens that each row's cache holds; the layers' own
counters must agree, which `check` proves.
"""

from __future__ import annotations

from typing import Any, cast

from omlx.engine.model import Cache, MakeCache
from omlx.engine.plan import (
    CacheOp,
    Drop,
    Evict,
    Extract,
    Filter,
    Merge,
    Open,
    Restore,
    Rewind,
    Save,
)
from omlx.engine.prefix.payload import Payloads
from omlx.engine.rewind import Mark, length_of, mark, rewind
from omlx.errors import RewindError


class CacheTable:
    def __init__(self, make_cache: MakeCache) -> None:
        self._make_cache = make_cache
        self.single: dict[int, Cache] = {}
        self.kept = Payloads(make_cache)
        self.batch: list[Any] = []
        self.members: list[int] = []
        self.lengths: dict[int, int] = {}
        self._marks: dict[int, Mark] = {}

    def apply(self, op: CacheOp) -> None:
        """Carry out one operation. Raises RewindError if a cache cannot reach the length that the plan counts on."""
        match op:
            case Open(row=row):
                self.single[row], self.lengths[row] = self._make_cache(), 0
            case Restore(row=row, pieces=pieces, length=length, prompt=prompt):
                self.single[row], self.lengths[row] = (
                    self.kept.build(pieces, length, prompt),
                    length,
                )
            case Rewind(row=row, length=length):
                marks = [self._marks[row]] if row in self._marks else []
                if (
                    reached := rewind(self.single[row], self.lengths[row], length, marks)
                ) != length:
                    raise RewindError(
                        "rewind.failed", length=length, detail=f"the cache went back to {reached}"
                    )
                self.lengths[row] = length
            case Merge(rows=rows):
                self._merge(rows)
            case Extract(row=row):
                index = self.members.index(row)
                self.single[row] = [layer.extract(index) for layer in self.batch]
            case Filter(keep=keep):
                self._filter(list(keep))
            case Save(row=row, pieces=kept):
                self.kept.keep(self.single[row], kept)
            case Drop(row=row):
                self.single.pop(row, None)
                self.lengths.pop(row, None)
                self._marks.pop(row, None)
            case Evict(pieces=pieces):
                self.kept.evict(pieces)

    def mark(self, row: int) -> None:
        """Remember where a single row stands, until `forget_marks`. For caches that cannot step back."""
        self._marks[row] = mark(self.single[row], self.lengths[row])

    def forget_marks(self) -> None:
        """Let go of every mark. Before the next pass writes in place, or a held array would force a copy."""
        self._marks.clear()

    def advance(self, row: int, tokens: int) -> None:
        self.lengths[row] += tokens

    def row_bytes(self, row: int) -> int:
        """Bytes of the arrays that a row holds, its share if it is in the batch; 0 before it has read anything."""
        if not self.lengths.get(row):
            return 0  # an empty quantized cache cannot tell
        if row in self.members:
            return sum(int(layer.nbytes) for layer in self.batch) // len(self.members)
        return sum(layer.nbytes for layer in self.single.get(row, ()))

    @property
    def nbytes(self) -> int:
        """Bytes of live caches; those of the kept pieces are theirs to tell."""
        return sum(map(self.row_bytes, self.single)) + sum(
            int(layer.nbytes) for layer in self.batch
        )

    def check(self) -> None:
        """Raise AssertionError if a layer holds another number of tokens than is counted here."""
        for row, cache in self.single.items():
            held = length_of(cache)
            assert held is None or held == self.lengths[row], (row, held, self.lengths[row])
        assert len(set(self.members)) == len(self.members)
        for layer in self.batch:
            if getattr(layer, "offset", None) is not None:
                assert layer.offset.tolist() == [self.lengths[row] for row in self.members]

    def _merge(self, rows: tuple[int, ...]) -> None:
        caches = [self.single.pop(row) for row in rows]
        merged = [
            cast(Any, type(layers[0])).merge(list(layers)) for layers in zip(*caches, strict=True)
        ]
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
