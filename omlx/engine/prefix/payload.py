"""The arrays of cache pieces: copied out of a live cache, concatenated into a new one.

Never a view of an array that a cache writes into: it would change, or force a copy of the whole
array at every step. So a piece is copied when it is saved, and again when it is restored. What was
read from disk is a copy already: it is saved itself.

| cache                        | saved as  | restored                                            |
|------------------------------|-----------|-----------------------------------------------------|
| KVCache QuantizedKVCache     | rows      | the rows, and room behind them                      |
| ConcatenateKVCache           | rows      | the rows                                            |
| RotatingKVCache              | window    | the last `max_size` rows, in temporal order         |
| ChunkedKVCache               | window    | the last `chunk_size` rows, where they begin        |
| ArraysCache                  | state     | the arrays                                          |
| CacheList                    | its parts |                                                     |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias, cast

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map
from mlx_lm.models.cache import (
    ArraysCache,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

from omlx.engine.disk.cover import Part
from omlx.engine.disk.record import Record, RecordId
from omlx.engine.disk.serial import to_arrays, to_record
from omlx.engine.model import Cache, LayerCache, MakeCache, Model
from omlx.engine.piece import Kind, Layout, Piece
from omlx.engine.rewind import leaves
from omlx.errors import EngineError, Reason

Arrays: TypeAlias = Any
"""Arrays [1, heads, rows, n], nested as in a layer's cache; for a state, what the layer keeps."""

_KINDS: Final[dict[type, Kind]] = {
    KVCache: "rows",
    QuantizedKVCache: "rows",
    ConcatenateKVCache: "rows",
    RotatingKVCache: "window",
    ChunkedKVCache: "window",
    ArraysCache: "state",
}
_STEP: Final = 256
"""Rows by which mlx-lm's caches grow."""


@dataclass(frozen=True, slots=True)
class Payload:
    """The arrays of one piece: one entry per layer of its kind, in the order of the layers.

    They are `whole` unless they are views of arrays with more rows.
    """

    piece: Piece
    arrays: tuple[Arrays, ...]
    whole: bool = True

    @property
    def nbytes(self) -> int:
        return _nbytes(self.arrays)


class Payloads:
    """The arrays of all cached pieces of one model, by id of the piece."""

    def __init__(self, make_cache: MakeCache) -> None:
        self._make_cache = make_cache
        self._kept: dict[int, Payload] = {}

    def __getitem__(self, piece: int) -> Payload:
        return self._kept[piece]

    def __iter__(self) -> Iterator[int]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def nbytes(self) -> int:
        return sum(payload.nbytes for payload in self._kept.values())

    def keep(self, cache: Cache, pieces: Iterable[Piece], loaded: Iterable[Payload] = ()) -> None:
        """Copy pieces out of a live cache that is at least as long. Waits for the copies.

        What the cache was assembled of (`loaded`) is kept itself where it is just such a piece.
        Raises EngineError, and keeps none, if the cache does not hold their rows.
        """
        known = {payload.piece: payload.arrays for payload in loaded if payload.whole}
        copies: dict[int, Payload] = {}
        for piece in pieces:
            arrays = known.get(replace(piece, id=0))  # as `read_payloads` names it
            if arrays is None:
                arrays = tuple(_copy(layer, piece) for layer in _of_kind(cache, piece.kind))
            copies[piece.id] = Payload(piece, arrays)
        mx.eval([payload.arrays for payload in copies.values()])
        self._kept.update(copies)

    def build(self, pieces: Sequence[int], length: int, prompt: int) -> Cache:
        """Return a new cache of `length` tokens with room for a prompt of `prompt` tokens.

        The pieces are copied.
        """
        return assemble(self._make_cache(), [self._kept[id] for id in pieces], length, prompt)

    def to_record(self, id: RecordId, piece: Piece) -> Record | None:
        """Copy the arrays of a piece into bytes; None if they are not there."""
        payload = self._kept.get(piece.id)
        return None if payload is None else to_record(id, payload.arrays)

    def evict(self, pieces: Iterable[int]) -> None:
        for piece in pieces:
            self._kept.pop(piece, None)


def assemble(cache: Cache, payloads: Iterable[Payload], length: int, prompt: int) -> Cache:
    """Fill a new cache with pieces that restore `length` tokens, with room for `prompt` tokens."""
    payloads = sorted(payloads, key=lambda part: part.piece.start)
    for kind in ("rows", "window", "state"):
        parts = [payload for payload in payloads if payload.piece.kind == kind]
        for i, layer in enumerate(_of_kind(cache, kind)):
            arrays = [payload.arrays[i] for payload in parts if payload.arrays[i] is not None]
            if arrays:
                _fill(layer, arrays, length - parts[0].piece.start, length, prompt)
    return cache


def read_payloads(records: Iterable[tuple[Part, Record]]) -> list[Payload]:
    """Copy parts of records that were read from disk. Waits for the copies."""
    payloads = [_to_payload(part, record) for part, record in records]
    mx.eval([payload.arrays for payload in payloads])
    return payloads


def _to_payload(part: Part, record: Record) -> Payload:
    piece = Piece(0, record.id.kind, part.start, part.stop)
    whole = (part.start, part.stop) == (record.id.start, record.id.stop)
    return Payload(piece, to_arrays(part, record), whole)


def uncacheable(cache: Iterable[LayerCache]) -> Reason | None:
    """Return why prefixes of such a cache cannot be cached, or None."""
    parts = leaves(cache)
    unknown = sorted({type(leaf).__name__ for leaf in parts if type(leaf) not in _KINDS})
    if unknown:
        return Reason("prefix.off.cache", {"layers": ", ".join(unknown)})
    windows = {_window(leaf) for leaf in parts if _KINDS[type(leaf)] == "window"}
    if len(windows) > 1 or any(getattr(leaf, "keep", 0) for leaf in parts):
        return Reason("prefix.off.windows", {"windows": ", ".join(map(str, sorted(windows)))})
    return None


def layout_of(model: Model, make_cache: MakeCache) -> Layout:
    """Measure the bytes of a cacheable model's cache, by reading two tokens."""
    cache = make_cache()
    mx.eval(model(mx.array([[0, 0]]), cache=cache))
    windows = [_window(leaf) for leaf in _of_kind(cache, "window")]

    def per_token(kind: Kind) -> int:
        return sum(_nbytes(_copy(leaf, Piece(0, kind, 1, 2))) for leaf in _of_kind(cache, kind))

    states = [_copy(leaf, Piece(0, "state", 0, 2)) for leaf in _of_kind(cache, "state")]
    return Layout(
        row_bytes=per_token("rows"),
        window_bytes=per_token("window"),
        window=max(windows, default=None),
        state_bytes=sum(map(_nbytes, states)),
        recurrent=len(states) > 0,
    )


def _of_kind(cache: Iterable[LayerCache], kind: Kind) -> list[Any]:
    return [leaf for leaf in leaves(cache) if _KINDS[type(leaf)] == kind]


def _window(leaf: Any) -> int:
    if type(leaf) is ChunkedKVCache:
        return int(leaf.chunk_size)
    return int(leaf.max_size)


def _copy(leaf: Any, piece: Piece) -> Arrays:
    """Copy a layer's part of a piece; None where the layer has read nothing."""
    if piece.kind == "state":
        return [None if array is None else mx.contiguous(array) for array in leaf.cache]
    if leaf.keys is None:
        return None
    kind = type(leaf)
    if kind is RotatingKVCache:
        return _copy_rotated(leaf, piece)
    first = leaf.start_position if kind is ChunkedKVCache else 0
    if piece.start < first or piece.stop > leaf.offset:
        raise _gone(leaf, piece)
    return _rows((leaf.keys, leaf.values), piece.start - first, piece.stop - first)


def _copy_rotated(leaf: Any, piece: Piece) -> Arrays:
    """Copy rows of a ring buffer, whose newest row is at `_idx - 1` once it has wrapped around."""
    size, at = leaf.keys.shape[2], leaf._idx
    ring = at < size and at < leaf.offset
    first = leaf.offset - (size if ring else at)
    start, stop = piece.start - first, piece.stop - first
    if start < 0 or piece.stop > leaf.offset:
        raise _gone(leaf, piece)
    if not ring:
        return _rows((leaf.keys, leaf.values), start, stop)
    places = (mx.arange(start, stop) + at) % size
    return tree_map(lambda array: mx.take(array, places, axis=2), (leaf.keys, leaf.values))


def _rows(arrays: Arrays, start: int, stop: int) -> Arrays:
    return tree_map(lambda array: mx.contiguous(array[..., start:stop, :]), arrays)


def _fill(leaf: Any, parts: Sequence[Arrays], rows: int, length: int, prompt: int) -> None:
    """Fill an empty layer with the first `rows` rows of `parts`; it then is at `length` tokens."""
    kind = type(leaf)
    if kind is ArraysCache:
        leaf.cache = list(parts[-1])
        return
    if kind is RotatingKVCache or kind is ChunkedKVCache:
        kept = min(rows, _window(leaf))
        leaf.keys, leaf.values = _join(parts, rows - kept, rows, kept)
        leaf.offset = length
        if kind is RotatingKVCache:
            leaf._idx = kept
        else:
            leaf.start_position = length - kept
        return
    room = length if kind is ConcatenateKVCache else _STEP * (1 + max(length, prompt) // _STEP)
    leaf.keys, leaf.values = _join(parts, 0, rows, room)
    leaf.offset = length


def _join(parts: Sequence[Arrays], start: int, stop: int, room: int) -> Arrays:
    """Concatenate rows [start, stop) of `parts` and zeros up to `room` rows, in one copy."""

    def join(*arrays: mx.array) -> mx.array:
        spans, at = [], 0
        for array in arrays:
            n = array.shape[2]
            if at + n > start and at < stop:
                spans.append(array[..., max(0, start - at) : min(n, stop - at), :])
            at += n
        if room > stop - start:
            batch, heads, _, width = arrays[0].shape
            spans.append(mx.zeros((batch, heads, room - (stop - start), width), arrays[0].dtype))
        return mx.concatenate(spans, axis=2)

    return tree_map(join, parts[0], *parts[1:])


def _gone(leaf: Any, piece: Piece) -> EngineError:
    return EngineError("prefix.gone", layer=type(leaf).__name__, start=piece.start, stop=piece.stop)


def _nbytes(arrays: Arrays) -> int:
    flat = cast(list[tuple[str, mx.array]], tree_flatten(arrays))
    return sum(array.nbytes for _, array in flat if array is not None)
