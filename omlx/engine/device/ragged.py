"""The KV cache of one row, or of several rows of any length that share passes.

Windows of a shared pass are padded at their ends to the widest. Attention layers are then rolled
back by the padding; recurrent ones know the widths before the pass, and leave the padding out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, CacheList, QuantizedKVCache

from omlx.engine.device import rewind as single
from omlx.engine.device.model import ATTENTION, Cache, cache_kind
from omlx.engine.device.ragged_cache import RaggedKVCache
from omlx.engine.device.rewind import leaves
from omlx.errors import RewindError


def merge_caches(caches: Sequence[Cache]) -> list[Any]:
    """Return one batch cache per layer, rows in the order of `caches`, which are not modified."""
    return [_merge_layer(layers) for layers in zip(*caches, strict=True)]


def _merge_layer(layers: Sequence[Any]) -> Any:
    first = layers[0]
    if cache_kind(type(first)) is CacheList:
        parts = zip(*(layer.caches for layer in layers), strict=True)
        return type(first)(*map(_merge_layer, parts))
    if cache_kind(type(first)) in ATTENTION:
        return RaggedKVCache.merge(layers)
    return type(first).merge(list(layers))


class RowsCache:
    """The cache of one row at first. `lengths` counts the held tokens, by row, in their order.

    Once rows have joined, the cache is `shared`: a batch cache per layer, also when they have left.
    """

    def __init__(self, row: int, layers: Cache, length: int = 0) -> None:
        self.lengths = {row: length}
        self.layers: list[Any] = list(layers)
        self.shared = False
        self._marks: list[tuple[dict[int, int], Any]] = []  # lengths before a pass, and states

    def join(self, others: Sequence[RowsCache]) -> None:
        """Append single rows. Each must hold a token: some layers treat the first differently."""
        joining = [other.layers for other in others]
        if self.shared:
            for layer, more in zip(self.layers, merge_caches(joining), strict=True):
                layer.extend(more)
        else:
            self.layers, self._marks = merge_caches([self.layers, *joining]), []
        self.shared = True
        for other in others:
            self.lengths |= other.lengths

    def extract(self, row: int) -> RowsCache:
        """Return a copy of one row of a shared cache, as a cache of its own."""
        index = list(self.lengths).index(row)
        return RowsCache(row, [layer.extract(index) for layer in self.layers], self.lengths[row])

    def filter(self, keep: Sequence[int]) -> None:
        """Keep these rows of a shared cache, at least one, in this order."""
        rows = list(self.lengths)
        if list(keep) == rows:
            return
        indices = [rows.index(row) for row in keep]
        for layer in self.layers:
            layer.filter(indices)
        self.lengths = {row: self.lengths[row] for row in keep}

    def read(self, widths: Sequence[int], forward: Callable[[Cache], mx.array]) -> mx.array:
        """Return the outputs of a pass of `forward` over `widths` tokens of the rows."""
        for row, width in zip(self.lengths, widths, strict=True):
            self.lengths[row] += width
        widest = max(widths)
        if not self.shared or min(widths) == widest:
            return forward(self.layers)
        parts: list[Any] = leaves(self.layers)
        for leaf in parts:
            if isinstance(leaf, ArraysCache):
                leaf.prepare(lengths=list(widths))
        outputs = forward(self.layers)
        for leaf in parts:
            if isinstance(leaf, ArraysCache):
                leaf.finalize()
            else:
                leaf.trim([widest - width for width in widths])
        return outputs

    def mark(self, *, fresh: bool = False) -> None:
        """Let rows be rolled back to here in layers that cannot step back. Copies nothing, but for
        `fresh`, which single sliding layers need before a pass over one token.
        """
        saved: Any
        if self.shared:
            parts: list[Any] = leaves(self.layers)
            saved = [list(leaf.cache) if isinstance(leaf, ArraysCache) else None for leaf in parts]
        else:
            saved = single.mark(self.layers, *self.lengths.values(), fresh=fresh)
        self._marks.append((dict(self.lengths), saved))

    def forget_marks(self) -> None:
        """Drop every mark: a pass that writes in place would copy arrays that marks hold."""
        self._marks = []

    def rewind(self, row: int, target: int) -> None:
        """Roll one row back to `target` tokens; where a layer needs a mark, to the newest below.

        Raises RewindError with all layers unchanged: they must agree on the lengths of rows, or the
        others could not be read.
        """
        now = self.lengths[row]
        if target >= now:
            return
        if not self.shared:
            marks = [saved for _, saved in self._marks]
            self.lengths[row] = single.rewind(self.layers, now, target, marks)
            return
        parts: list[Any] = leaves(self.layers)
        index, length, before, states = list(self.lengths).index(row), target, 0, list[Any]()
        if not all(isinstance(leaf, RaggedKVCache) for leaf in parts):
            below = [mark for mark in self._marks if mark[0].get(row, now) <= target]
            if not below:
                raise RewindError("rewind.failed", length=target, detail="there is no mark")
            lengths, states = below[-1]
            length, before = lengths[row], list(lengths).index(row)
        for leaf in parts:
            if isinstance(leaf, RaggedKVCache):
                leaf.check_rewind(index, length)
        for i, leaf in enumerate(parts):
            if isinstance(leaf, RaggedKVCache):
                leaf.rewind(index, length)
                continue
            for entry, state in enumerate(states[i] or ()):
                if state is not None:
                    row_state, starts = state[before][None], mx.array([index])
                    leaf[entry] = mx.slice_update(leaf[entry], row_state, starts, axes=(0,))
        self.lengths[row] = length

    @property
    def nbytes(self) -> int:
        parts = leaves(self.layers)  # of a pass that failed, some may be empty
        return sum(int(part.nbytes) for part in parts if not _lacks_bytes(part))

    def check(self) -> None:
        """Raise AssertionError if a layer holds other numbers of tokens than `lengths` says."""
        held = list(self.lengths.values())
        if not self.shared:
            assert single.length_of(self.layers) in (None, *held), held
            return
        for leaf in leaves(self.layers):
            if isinstance(leaf, RaggedKVCache):
                assert leaf.lengths == leaf.offset.tolist() == held, (leaf.lengths, held)


def _lacks_bytes(part: Any) -> bool:
    """Whether `nbytes` would fail, as of an empty quantized cache."""
    return type(part) is QuantizedKVCache and part.keys is None
