"""Buffers of attention layers in a batch: rows of any length, with rollback by row.

    column      0 1 2 3 4 5 6 7
    row 0       a a a a a a . .      start  0, length 6
    row 1       . . . b b b b .      start -3, length 4

The token at position p of a row is in column p - start. Lengths are on the host, so a rollback
changes a number. One scatter writes all rows, wherever each ends. Rows that leave make room for
others that join: the rest of the batch is not copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias, cast

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map, tree_reduce
from mlx_lm.models.cache import KVCache, QuantizedKVCache, RotatingKVCache

from omlx.errors import RewindError

COLUMNS: Final = 256
"""Columns by which buffers grow: at least half of them are free behind a copy."""

PADDING: Final = 16
"""Divisor — share of unused columns above which rows are laid out again."""

SPARE: Final = 128
"""Tokens that a sliding layer holds beyond its window, so that rows can be rolled back: more than
a draft and its pending tokens."""

Rows: TypeAlias = Any
"""An array [rows, heads, tokens, width], or a tuple of such: quantized values, scales, biases."""

KeysValues: TypeAlias = tuple[Rows, Rows]
"""Keys and values; their widths may differ."""


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

    @staticmethod
    def merge(caches: Sequence[Single]) -> RaggedKVCache:
        """Return a cache with one row for each of `caches`, which are not modified."""
        first, lengths = caches[0], [cache.offset for cache in caches]
        if isinstance(first, QuantizedKVCache):
            merged: RaggedKVCache = RaggedQuantizedKVCache(lengths, first.group_size, first.bits)
        else:
            window = first.max_size if isinstance(first, RotatingKVCache) else None
            merged = RaggedKVCache(lengths, window)
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
        return 0 if self.keys is None else _tokens(self.keys)

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

    def update_and_fetch(self, keys: Rows, values: Rows) -> KeysValues:
        """Append keys and values [rows, heads, n, width]; return those that the rows attend to."""
        n = _tokens(keys)
        if self.keys is None:
            empty = tree_map(lambda array: array[:1, :, :0], (keys, values))
            self._lay_out([empty] * len(self.lengths), n)
        self._make_room(n)
        columns = _written((*self._ends, *[0] * self._unused), n)
        self.keys = self._put(self.keys, columns, keys)
        self.values = self._put(self.values, columns, values)
        self._shown = self._columns(n)
        self.lengths = [length + n for length in self.lengths]
        self._positions = None
        return self.keys_and_values()

    def keys_and_values(self) -> KeysValues:
        """Return the keys and values that the newest pass attended to."""
        rows, shown = len(self.lengths), slice(*self._shown)
        return self.keys[:rows, :, shown], self.values[:rows, :, shown]

    def _put(self, held: Rows, columns: mx.array, new: Rows) -> Rows:
        if unused := self._unused:
            new = mx.pad(new, [(0, unused), (0, 0), (0, 0), (0, 0)])
        return mx.put_along_axis(held, columns, new, axis=2)

    @property
    def state(self) -> Any:
        return self.keys, self.values

    @property
    def nbytes(self) -> int:
        if self.keys is None:
            return 0
        return int(tree_reduce(lambda sum, array: sum + array.nbytes, self.state, 0))

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
        """Remove the last `tokens` of each row, which the newest pass wrote behind its window."""
        self.lengths = [length - n for length, n in zip(self.lengths, tokens, strict=True)]
        self._positions = None

    def filter(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order.

        Rows of the buffer that are left over serve others that join, up to a third. Of the rows
        that stay, those with a new place alone are copied.
        """
        places = {place: row for place, row in enumerate(rows) if place != row}
        firsts, starts = [self.firsts[row] for row in rows], [self.starts[row] for row in rows]
        padding = min(first - start for first, start in zip(firsts, starts, strict=True))
        unused = self._unused + len(self.lengths) - len(rows)
        dense = unused <= max(1, len(rows) // 3) and PADDING * padding <= max(self._ends)
        lengths = [self.lengths[row] for row in rows]
        if self.keys is None or not dense or any(row < len(rows) for row in places.values()):
            held = [self._row(row) for row in rows]
            self.lengths = lengths
            self._lay_out(held)
            return
        self.lengths, self.firsts, self.starts, self._positions = lengths, firsts, starts, None
        if not places:
            return
        arrays, moved = _arrays(self.state), mx.array([*places.values()])
        copies = [array[moved] for array in arrays]
        mx.eval(copies)  # else they hold the buffers, and force a copy of each
        for array, copied in zip(arrays, copies, strict=True):
            for i, place in enumerate(places):
                array[place] = copied[i]

    def extend(self, other: RaggedKVCache) -> None:
        """Append the rows of another cache, in unused rows where all fit there."""
        joining = [other._row(i) for i in range(len(other.lengths))]
        held = [_newest(row, self._most) for row in joining if row is not None]
        edge = max(self._ends)
        longest = max([_tokens(keys) for keys, _ in held], default=0)
        if not 0 < len(joining) == len(held) <= self._unused or longest > edge:
            rows = [self._row(i) for i in range(len(self.lengths))]
            self.lengths += other.lengths
            self._lay_out([*rows, *joining])
            return
        for row, length in zip(held, other.lengths, strict=True):
            tokens, place = _tokens(row[0]), len(self.lengths)
            for array, new in zip(_arrays(self.state), _arrays(row), strict=True):
                # Zeros around it: NaN of a row that failed would reach through the mask.
                around = (edge - tokens, array.shape[2] - edge)
                array[place] = mx.pad(new[0], [(0, 0), around, (0, 0)])
            self.lengths.append(length)
            self.starts.append(length - edge)
            self.firsts.append(length - tokens)
        self._positions = None

    def extract(self, row: int) -> Any:
        """Return a copy of one row as mlx-lm's cache of a row alone."""
        single = self._single()
        single.offset = self.lengths[row]
        held = self._row(row)
        if held is None:
            return single
        kept = slice(0 if self.window is None else -self.window, None)
        single.keys, single.values = tree_map(
            lambda array: mx.contiguous(array[..., kept, :]), held
        )
        if self.window is not None:
            single._idx = single.keys.shape[2]
        return single

    def _single(self) -> Any:
        return KVCache() if self.window is None else RotatingKVCache(self.window)

    # -- columns -----------------------------------------------------------------------------------

    @property
    def _ends(self) -> list[int]:
        """The column behind each row."""
        return [length - start for length, start in zip(self.lengths, self.starts, strict=True)]

    @property
    def _unused(self) -> int:
        """Rows of the buffer behind those that are used."""
        return 0 if self.keys is None else _arrays(self.keys)[0].shape[0] - len(self.lengths)

    @property
    def _most(self) -> int | None:
        """Tokens of a row that a sliding layer keeps."""
        return None if self.window is None else self.window + SPARE

    def _columns(self, n: int) -> tuple[int, int]:
        """The columns that the next `n` tokens of any row attend to: [first, behind the last)."""
        ends = self._ends
        low = 0 if self.window is None else max(0, min(ends) + 1 - self.window)
        return low, max(ends) + n

    def _make_room(self, n: int) -> None:
        """Lay the rows out again if `n` more columns do not fit behind each."""
        if self.keys is not None and max(self._ends) + n > _tokens(self.keys):
            self._lay_out([self._row(i) for i in range(len(self.lengths))], n)

    def _row(self, row: int) -> KeysValues | None:
        """Return the arrays of a row, [1, heads, tokens, width]; None before the first pass."""
        if self.keys is None:
            return None
        start = self.starts[row]
        held = slice(self.firsts[row] - start, self.lengths[row] - start)
        held_rows: KeysValues = tree_map(lambda array: array[row : row + 1, :, held], self.state)
        return held_rows

    def _lay_out(self, rows: Sequence[KeysValues | None], room: int = 1) -> None:
        """Copy rows into a buffer where all end in one column, with `room` columns behind it.

        A sliding layer leaves out what no row will attend to. Rows of None hold nothing.
        """
        like = next((held for held in rows if held is not None), None)
        self._positions = None
        if like is None:
            self.firsts, self.starts = [0] * len(rows), [0] * len(rows)
            return
        empty = tree_map(lambda array: array[..., :0, :], like)
        held = [_newest(empty if row is None else row, self._most) for row in rows]
        tokens = [_tokens(keys) for keys, _ in held]
        edge = max(tokens)
        columns = -(-(edge + room + COLUMNS // 2) // COLUMNS) * COLUMNS
        self.keys, self.values = tree_map(
            lambda *arrays: _aligned(arrays, edge, columns), held[0], *held[1:]
        )
        self.starts = [length - edge for length in self.lengths]
        self.firsts = [length - n for length, n in zip(self.lengths, tokens, strict=True)]


class RaggedQuantizedKVCache(RaggedKVCache):
    """Ragged buffer of quantized keys and values, in the format of mlx-lm's QuantizedKVCache.

    Each token is quantized alone when it is written, `group_size` numbers of a head together, so
    stored values do not depend on the passes that computed them.
    """

    def __init__(self, lengths: Sequence[int], group_size: int, bits: int) -> None:
        super().__init__(lengths)
        self.group_size = group_size
        self.bits = bits

    def update_and_fetch(self, keys: Rows, values: Rows) -> KeysValues:
        """Append keys and values, quantized; return those that the rows attend to."""
        packed = (mx.quantize(new, self.group_size, self.bits) for new in (keys, values))
        return super().update_and_fetch(*map(tuple, packed))

    def keys_and_values(self) -> KeysValues:
        rows, shown = len(self.lengths), slice(*self._shown)
        keys, values = (
            tuple(array[:rows, :, shown] for array in held) for held in (self.keys, self.values)
        )
        return keys, values

    def _put(self, held: Rows, columns: mx.array, new: Rows) -> Rows:
        put = super()._put
        return tuple(put(old, columns, added) for old, added in zip(held, new, strict=True))

    def _single(self) -> Any:
        return QuantizedKVCache(self.group_size, self.bits)


@lru_cache(maxsize=4)
def _written(ends: tuple[int, ...], n: int) -> mx.array:
    """Return the columns of the next `n` tokens of rows that end there, [rows, 1, n, 1].

    All layers of a kind write to the same ones: made once a pass, not once a layer. Their values
    come from the host, so that no thread reads what the stream of another has yet to compute.
    """
    return mx.array([[[[end + i] for i in range(n)]] for end in ends])


def _tokens(rows: Rows) -> int:
    return int((rows[0] if isinstance(rows, tuple | list) else rows).shape[2])


def _arrays(rows: Any) -> list[mx.array]:
    leaves = cast(list[tuple[str, mx.array]], tree_flatten(rows))
    return [array for _, array in leaves]


def _newest(row: KeysValues, most: int | None) -> KeysValues:
    if most is None or _tokens(row[0]) <= most:
        return row
    return row[0][..., -most:, :], row[1][..., -most:, :]


def _aligned(rows: Sequence[mx.array], edge: int, columns: int) -> mx.array:
    """Copy rows [1, heads, tokens, width] into one array with `columns` columns, all ending at
    column `edge`.
    """
    padded = []
    for row in rows:
        left = edge - row.shape[2]
        padded.append(mx.pad(row, [(0, 0), (0, 0), (left, columns - edge), (0, 0)]))
    return mx.concatenate(padded)


Single: TypeAlias = KVCache | QuantizedKVCache | RotatingKVCache
"""Cache of a row alone."""


def _ordered(cache: Single) -> KeysValues | None:
    """Return the arrays of a single row's cache by position; None before its first pass."""
    keys, values = cast(tuple[Any, Any], (cache.keys, cache.values))
    if keys is None:
        return None
    if not isinstance(cache, RotatingKVCache):
        held = slice(0, cache.offset)
        ordered: KeysValues = tree_map(lambda array: array[..., held, :], (keys, values))
        return ordered
    at = cache._idx
    if at == keys.shape[2] or at == cache.offset:
        return keys[..., :at, :], values[..., :at, :]
    return _turned(keys, at), _turned(values, at)  # a ring: its oldest row is at `_idx`


def _turned(ring: mx.array, at: int) -> mx.array:
    return mx.concatenate([ring[..., at:, :], ring[..., :at, :]], axis=2)
