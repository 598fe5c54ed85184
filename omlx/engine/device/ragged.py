"""The caches of a batch: one per layer, with rows of any length, rolled back one by one.

    column      0 1 2 3 4 5 6 7
    row 0       a a a a a a . .      start  0, length 6
    row 1       . . . b b b b .      start -3, length 4

In an attention layer the token at position p of a row is in column p - start. Lengths are on the
host, so a rollback changes a number. One scatter writes all rows, wherever each ends. Windows of a
pass are padded at their ends to the widest. Attention layers are then rolled back by the padding;
recurrent ones know the widths before the pass, and leave the padding out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeAlias, cast

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, RotatingKVCache

from omlx.engine.device.kinds import ATTENTION, kind_of
from omlx.engine.device.model import Cache
from omlx.engine.device.rewind import leaves
from omlx.errors import RewindError

COLUMNS: Final = 256
"""A buffer has a multiple of so many columns; at least half of them are free behind a copy."""

SPARE: Final = 128
"""Tokens that a sliding layer holds beyond its window, so that rows can be rolled back: more than
a draft and its pending tokens."""

KeysValues: TypeAlias = tuple[mx.array, mx.array]
"""Keys and values, each [rows, heads, tokens, width]; the widths may differ."""


class RaggedKVCache:
    """Provides what mlx-lm's models ask of a cache: offset, make_mask, update_and_fetch.

    `lengths` are the tokens of each row, of which the first `firsts` are no longer held; `window`
    is how far back the layer attends, None for all tokens. Garbage that a rolled-back row leaves
    behind its end is finite, and masked.

    Models of mlx-vlm also read `left_padding`, `_idx` (the columns that masks cover, so that none
    is cut) and `_offset` (tokens of the longest row).
    """

    left_padding = None

    def __init__(self, lengths: Sequence[int], window: int | None = None) -> None:
        self.keys: Any = None
        self.values: Any = None
        self.window = window
        self.lengths = list(lengths)
        self.starts = [0] * len(self.lengths)
        self.firsts = [0] * len(self.lengths)
        self._positions: mx.array | None = None
        self._shown = (0, 0)  # columns that the newest pass attended to

    @classmethod
    def merge(cls, caches: Sequence[KVCache | RotatingKVCache]) -> RaggedKVCache:
        """Return a cache with one row for each of `caches`, which are not modified."""
        first = caches[0]
        window = first.max_size if isinstance(first, RotatingKVCache) else None
        merged = cls([cache.offset for cache in caches], window)
        merged._lay_out([_ordered(cache) for cache in caches])
        return merged

    # -- what models call --------------------------------------------------------------------------

    @property
    def offset(self) -> mx.array:
        """The position of each row's next token, [rows]."""
        if self._positions is None:
            self._positions = mx.array(self.lengths)
        return self._positions

    @property
    def _idx(self) -> int:
        return 0 if self.keys is None else int(self.keys.shape[2])

    @property
    def _offset(self) -> int:
        return max(self.lengths)

    def make_mask(
        self, n: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | str | None:
        """Return which columns the next `n` tokens of each row attend to, [rows, 1, n, columns].

        None or "causal" where that says the same, unless `return_array`.
        """
        self._make_room(n)
        ends = self._ends
        low, high = self._columns(n)
        windows = [size for size in (self.window, window_size) if size is not None]
        window = min(windows, default=None)
        lowest = [first - start for first, start in zip(self.firsts, self.starts, strict=True)]
        all_seen = max(lowest) <= low and (window is None or high - low <= window)
        if all_seen and min(ends) == max(ends) and not return_array:
            return None if n == 1 else "causal"
        columns = mx.arange(low, high)
        newest = mx.array(ends)[:, None, None] + mx.arange(n)[:, None]  # [rows, n, 1]
        mask = columns <= newest
        if window is not None:
            mask = mask & (columns > newest - window)
        if max(lowest) > low:
            mask = mask & (columns >= mx.array(lowest)[:, None, None])
        return mask[:, None]

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> KeysValues:
        """Append keys and values [rows, heads, n, width]; return those that the rows attend to."""
        n = keys.shape[2]
        if self.keys is None:
            self._lay_out([(keys[:1, :, :0], values[:1, :, :0])] * len(self.lengths), n)
        self._make_room(n)
        columns = _written(tuple(self._ends), n)
        self.keys = mx.put_along_axis(self.keys, columns, keys, axis=2)
        self.values = mx.put_along_axis(self.values, columns, values, axis=2)
        self._shown = self._columns(n)
        self.lengths = [length + n for length in self.lengths]
        self._positions = None
        return self.keys_and_values()

    def keys_and_values(self) -> KeysValues:
        """Return the keys and values that the newest pass attended to."""
        shown = slice(*self._shown)
        return self.keys[..., shown, :], self.values[..., shown, :]

    @property
    def state(self) -> Any:
        return self.keys, self.values

    @property
    def nbytes(self) -> int:
        return 0 if self.keys is None else int(self.keys.nbytes + self.values.nbytes)

    # -- rows --------------------------------------------------------------------------------------

    def check_rewind(self, row: int, length: int) -> None:
        """Raise RewindError if a row no longer holds what it needs at `length` tokens."""
        first = self.firsts[row]
        needed = first + self.window - 1 if first and self.window is not None else first
        if not needed <= length <= self.lengths[row]:
            detail = f"{self.lengths[row]} tokens from {first}"
            raise RewindError("rewind.failed", length=length, detail=detail)

    def rewind(self, row: int, length: int) -> None:
        """Roll one row back to `length` tokens. Raises RewindError if it cannot be."""
        self.check_rewind(row, length)
        self.lengths[row] = length
        self._positions = None

    def trim(self, tokens: Sequence[int]) -> None:
        """Remove so many tokens of each row, which the newest pass wrote behind its window."""
        self.lengths = [length - n for length, n in zip(self.lengths, tokens, strict=True)]
        self._positions = None

    def filter(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order."""
        held = [self._row(row) for row in rows]
        self.lengths = [self.lengths[row] for row in rows]
        self._lay_out(held)

    def extend(self, other: RaggedKVCache) -> None:
        """Append the rows of another cache."""
        held = [cache._row(i) for cache in (self, other) for i in range(len(cache.lengths))]
        self.lengths += other.lengths
        self._lay_out(held)

    def extract(self, row: int) -> Any:
        """Return a copy of one row as mlx-lm's cache of a row alone."""
        single: Any = KVCache() if self.window is None else RotatingKVCache(self.window)
        single.offset = self.lengths[row]
        held = self._row(row)
        if held is None:
            return single
        kept = slice(0 if self.window is None else -self.window, None)
        single.keys, single.values = (mx.contiguous(array[..., kept, :]) for array in held)
        if self.window is not None:
            single._idx = single.keys.shape[2]
        return single

    # -- columns -----------------------------------------------------------------------------------

    @property
    def _ends(self) -> list[int]:
        """The column behind each row."""
        return [length - start for length, start in zip(self.lengths, self.starts, strict=True)]

    def _columns(self, n: int) -> tuple[int, int]:
        """The columns that the next `n` tokens of any row attend to: [first, behind the last)."""
        ends = self._ends
        low = 0 if self.window is None else max(0, min(ends) + 1 - self.window)
        return low, max(ends) + n

    def _make_room(self, n: int) -> None:
        """Lay the rows out again if `n` more columns do not fit behind each."""
        if self.keys is not None and max(self._ends) + n > self.keys.shape[2]:
            self._lay_out([self._row(i) for i in range(len(self.lengths))], n)

    def _row(self, row: int) -> KeysValues | None:
        """What a row holds, in order, [1, heads, tokens, width]; None before the first pass."""
        if self.keys is None:
            return None
        start = self.starts[row]
        held = slice(self.firsts[row] - start, self.lengths[row] - start)
        return self.keys[row : row + 1, :, held], self.values[row : row + 1, :, held]

    def _lay_out(self, rows: Sequence[KeysValues | None], room: int = 1) -> None:
        """Copy rows into a buffer where all end in one column, with `room` columns behind it.

        A sliding layer leaves out what no row will attend to. Rows of None hold nothing.
        """
        like = next((held for held in rows if held is not None), None)
        self._positions = None
        if like is None:
            self.firsts, self.starts = [0] * len(rows), [0] * len(rows)
            return
        most = None if self.window is None else self.window + SPARE
        empty = (like[0][..., :0, :], like[1][..., :0, :])
        held = [_newest(empty if row is None else row, most) for row in rows]
        tokens = [keys.shape[2] for keys, _ in held]
        edge = max(tokens)
        columns = -(-(edge + room + COLUMNS // 2) // COLUMNS) * COLUMNS
        self.keys = _aligned([keys for keys, _ in held], edge, columns)
        self.values = _aligned([values for _, values in held], edge, columns)
        self.starts = [length - edge for length in self.lengths]
        self.firsts = [length - n for length, n in zip(self.lengths, tokens, strict=True)]


@lru_cache(maxsize=4)
def _written(ends: tuple[int, ...], n: int) -> mx.array:
    """Return the columns of the next `n` tokens of rows that end there, [rows, 1, n, 1].

    All layers of a kind write to the same ones: made once a pass, not once a layer. Their values
    come from the host, so that no thread reads what the stream of another has yet to compute.
    """
    return mx.array([[[[end + i] for i in range(n)]] for end in ends])


def _newest(row: KeysValues, most: int | None) -> KeysValues:
    keys, values = row
    if most is None or keys.shape[2] <= most:
        return row
    return keys[..., -most:, :], values[..., -most:, :]


def _aligned(rows: Sequence[mx.array], edge: int, columns: int) -> mx.array:
    """Copy rows [1, heads, tokens, width] into one array with `columns` columns, all ending at
    column `edge`.
    """
    padded = []
    for row in rows:
        left = edge - row.shape[2]
        padded.append(mx.pad(row, [(0, 0), (0, 0), (left, columns - edge), (0, 0)]))
    return mx.concatenate(padded)


def _ordered(cache: KVCache | RotatingKVCache) -> KeysValues | None:
    """What the cache of a row alone holds, in order of positions; None before its first pass."""
    keys, values = cast(tuple[Any, Any], (cache.keys, cache.values))
    if keys is None:
        return None
    if not isinstance(cache, RotatingKVCache):
        held = slice(0, cache.offset)
        return keys[..., held, :], values[..., held, :]
    at = cache._idx
    if at == keys.shape[2] or at == cache.offset:
        return keys[..., :at, :], values[..., :at, :]
    return _turned(keys, at), _turned(values, at)  # a ring: its oldest row is at `_idx`


def _turned(ring: mx.array, at: int) -> mx.array:
    return mx.concatenate([ring[..., at:, :], ring[..., :at, :]], axis=2)


@dataclass(frozen=True, slots=True)
class BatchMark:
    """Recurrent states before a pass: `states[i]` are those of leaf i, None for other layers.

    `members` are the rows that they belong to, in order.
    """

    members: tuple[int, ...]
    states: tuple[list[mx.array | None] | None, ...]


def merge_caches(caches: Sequence[Cache]) -> list[Any]:
    """Return one batch cache per layer, rows in the order of `caches`, which are not modified."""
    return [_merge_layer(layers) for layers in zip(*caches, strict=True)]


def _merge_layer(layers: Sequence[Any]) -> Any:
    first = layers[0]
    if kind_of(first) is CacheList:
        parts = zip(*(layer.caches for layer in layers), strict=True)
        return type(first)(*map(_merge_layer, parts))
    if kind_of(first) in ATTENTION:
        return RaggedKVCache.merge(layers)
    return type(first).merge(list(layers))


def prepare(batch: Sequence[Any], widths: Sequence[int]) -> None:
    """Announce a pass over windows of `widths` tokens, padded to the widest."""
    if min(widths) == max(widths):
        return
    for leaf in leaves(batch):
        if isinstance(leaf, ArraysCache):
            leaf.prepare(lengths=list(widths))


def finalize(batch: Sequence[Any], widths: Sequence[int]) -> None:
    """Remove the padding of a pass that was prepared."""
    widest = max(widths)
    if min(widths) == widest:
        return
    parts: list[Any] = leaves(batch)
    for leaf in parts:
        if isinstance(leaf, ArraysCache):
            leaf.finalize()
        else:
            leaf.trim([widest - width for width in widths])


def mark(batch: Sequence[Any], members: Sequence[int]) -> BatchMark:
    """Return a mark of recurrent states before a pass that may be rolled back. Copies nothing."""
    parts: list[Any] = leaves(batch)
    states: list[list[mx.array | None] | None] = []
    for leaf in parts:
        states.append(list(leaf.cache) if isinstance(leaf, ArraysCache) else None)
    return BatchMark(tuple(members), tuple(states))


def rewind(
    batch: Sequence[Any], members: Sequence[int], row: int, length: int, saved: BatchMark | None
) -> None:
    """Roll back one of the rows `members` to `length` tokens.

    Recurrent layers return to the mark, which must be at that length. Raises RewindError with all
    layers unchanged: they must agree on the lengths of rows, or the others could not be read.
    """
    index = members.index(row)
    parts: list[Any] = leaves(batch)
    for leaf in parts:
        if isinstance(leaf, RaggedKVCache):
            leaf.check_rewind(index, length)
        elif saved is None or row not in saved.members:
            raise RewindError("rewind.failed", length=length, detail="there is no mark")
    for i, leaf in enumerate(parts):
        if isinstance(leaf, RaggedKVCache):
            leaf.rewind(index, length)
            continue
        assert saved is not None
        before = saved.members.index(row)
        for entry, state in enumerate(saved.states[i] or ()):
            if state is not None:
                leaf[entry] = _with_row(leaf[entry], index, state[before])


def _with_row(states: mx.array, index: int, state: mx.array) -> mx.array:
    """Return `states` [rows, …] with row `index` replaced by `state` […]."""
    starts = mx.array([index])
    return mx.slice_update(states, state[None], starts, axes=(0,))
