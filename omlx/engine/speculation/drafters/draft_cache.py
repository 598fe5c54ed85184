"""KV caches of a draft model: those of one row, or of several rows that share its passes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mlx.core as mx

from omlx.engine.device import ragged
from omlx.engine.device import rewind as single
from omlx.engine.device.model import Cache, Model
from omlx.engine.device.ragged_cache import RaggedKVCache
from omlx.errors import RewindError


class DraftCache:
    """Begins with one row. `lengths` counts the tokens that are held, by row, in their order.

    A shared cache keeps the form of `omlx.engine.device.ragged` until its rows have left.
    """

    def __init__(self, row: int, layers: Cache, length: int = 0) -> None:
        self.lengths = {row: length}
        self.layers: list[Any] = list(layers)
        self.shared = False
        self._marks: list[tuple[dict[int, int], Any]] = []

    def join(self, others: Sequence[DraftCache]) -> None:
        """Append single rows. Each must hold a token: some layers treat the first differently."""
        joining = [other.layers for other in others]
        if self.shared:
            merged = ragged.merge_caches(joining)
            for layer, more in zip(self.layers, merged, strict=True):
                layer.extend(more)
        else:
            self.layers = ragged.merge_caches([self.layers, *joining])
        self.shared = True
        for other in others:
            self.lengths |= other.lengths

    def extract(self, row: int) -> DraftCache:
        """Return a copy of one row of a shared cache, as a cache of its own."""
        index = list(self.lengths).index(row)
        layers = [layer.extract(index) for layer in self.layers]
        return DraftCache(row, layers, self.lengths[row])

    def remove(self, row: int) -> None:
        """Remove a row of a shared cache that is not its last one."""
        keep = [i for i, member in enumerate(self.lengths) if member != row]
        for layer in self.layers:
            layer.filter(keep)
        del self.lengths[row]

    def mark(self, *, fresh: bool = False) -> None:
        """Let rows be rolled back to here in layers that cannot step back. Copies nothing, but for
        `fresh`, which single sliding layers need before a pass over one token.
        """
        rows = tuple(self.lengths)
        if self.shared:
            self._marks.append((dict(self.lengths), ragged.mark(self.layers, rows)))
        else:
            saved = single.mark(self.layers, self.lengths[rows[0]], fresh=fresh)
            self._marks.append((dict(self.lengths), saved))

    def forget_marks(self) -> None:
        self._marks = []

    def read(self, model: Model, tokens: mx.array, widths: Sequence[int]) -> mx.array:
        """Read windows of `widths` tokens, padded at their ends in `tokens` [rows, widest].

        Return the logits behind each window, [rows, vocabulary].
        """
        if self.shared:
            ragged.prepare(self.layers, widths)
        logits: mx.array = model(tokens, cache=self.layers)
        if self.shared:
            ragged.finalize(self.layers, widths)
        for row, width in zip(self.lengths, widths, strict=True):
            self.lengths[row] += width
        if min(widths) == logits.shape[1]:
            return logits[:, -1]
        return mx.stack([logits[i, width - 1] for i, width in enumerate(widths)])

    def rewind(self, row: int, target: int) -> None:
        """Roll one row back to `target` tokens, or to the newest mark below. Raises RewindError."""
        now = self.lengths[row]
        if target >= now:
            return
        if not self.shared:
            marks = [saved for _, saved in self._marks]
            self.lengths[row] = single.rewind(self.layers, now, target, marks)
            return
        length, saved = target, None
        if not all(isinstance(leaf, RaggedKVCache) for leaf in single.leaves(self.layers)):
            below = [(at[row], mark) for at, mark in self._marks if at.get(row, now) <= target]
            if not below:
                raise RewindError("rewind.failed", length=target, detail="there is no mark")
            length, saved = below[-1]
        ragged.rewind(self.layers, list(self.lengths), row, length, saved)
        self.lengths[row] = length

    @property
    def nbytes(self) -> int:
        return sum(int(layer.nbytes) for layer in self.layers)

    def check(self) -> None:
        """Raise AssertionError if a layer holds other numbers of tokens than `lengths` says."""
        held = list(self.lengths.values())
        for leaf in single.leaves(self.layers):
            if isinstance(leaf, RaggedKVCache):
                assert leaf.lengths == held, (leaf.lengths, held)
            elif not self.shared:
                offset = getattr(leaf, "offset", None)
                assert offset is None or [offset] == held, (offset, held)


class DraftCaches:
    """The cache of each row, by row; `shared` is the one that several rows have."""

    def __init__(self) -> None:
        self.shared: DraftCache | None = None
        self._by_row: dict[int, DraftCache] = {}

    def __contains__(self, row: int) -> bool:
        return row in self._by_row

    def __getitem__(self, row: int) -> DraftCache:
        return self._by_row[row]

    @property
    def members(self) -> list[int]:
        return [] if self.shared is None else list(self.shared.lengths)

    def held(self, row: int) -> int:
        """Return how many tokens the cache of a row holds."""
        return self._by_row[row].lengths[row]

    def open(self, row: int, layers: Cache, length: int = 0) -> None:
        """Give a row a cache of its own that holds `length` tokens."""
        self.drop(row)
        self._by_row[row] = DraftCache(row, layers, length)

    def separate(self, row: int) -> DraftCache:
        """Return the row's own cache, copied out of the shared one."""
        if row in self.members:
            assert self.shared is not None
            own = self.shared.extract(row)
            self.drop(row)
            self._by_row[row] = own
        return self._by_row[row]

    def gather(self, rows: Sequence[int]) -> DraftCache:
        """Return a cache that holds these rows, and maybe others."""
        first = self._by_row[rows[0]]
        if len(rows) == 1 and first is not self.shared:
            return first
        cache = self.shared or first
        joining = [self._by_row[row] for row in rows if self._by_row[row] is not cache]
        if joining:
            cache.join(joining)
        self._by_row |= dict.fromkeys(rows, cache)
        self.shared = cache
        return cache

    def drop(self, row: int) -> None:
        """Delete the cache of a row. An unknown one is ignored."""
        cache = self._by_row.pop(row, None)
        if cache is None or cache is not self.shared:
            return
        if len(cache.lengths) > 1:
            cache.remove(row)
        else:
            self.shared = None

    @contextmanager
    def dropping_on_error(self, cache: DraftCache) -> Iterator[None]:
        """Delete a cache, with all of its rows, if the block raises: it is unproven then."""
        proven = False
        try:
            yield
            proven = True
        finally:
            if not proven:
                for row in cache.lengths:
                    del self._by_row[row]
                if cache is self.shared:
                    self.shared = None

    @property
    def nbytes(self) -> int:
        return sum(cache.nbytes for cache in {*self._by_row.values()})

    def check(self) -> None:
        """Raise AssertionError if a cache contradicts its record."""
        for row, cache in self._by_row.items():
            assert row in cache.lengths
            assert (cache is self.shared) == cache.shared
            cache.check()
