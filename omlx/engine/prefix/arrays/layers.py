"""The layers of a cache, as the prefix cache sees them: what of them is a piece, and copies of it.

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

from collections.abc import Iterable
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


def uncacheable(cache: Iterable[LayerCache]) -> Reason | None:
    """Return why prefixes of such a cache cannot be cached, or None."""
    parts = leaves(cache)
    unknown = sorted({type(leaf).__name__ for leaf in parts if type(leaf) not in _KINDS})
    if unknown:
        return Reason("prefix.off.cache", {"layers": ", ".join(unknown)})
    windows = {window_of(leaf) for leaf in parts if _KINDS[type(leaf)] == "window"}
    if len(windows) > 1 or any(getattr(leaf, "keep", 0) for leaf in parts):
        return Reason("prefix.off.windows", {"windows": ", ".join(map(str, sorted(windows)))})
    return None


def layout_of(model: Model, make_cache: MakeCache) -> Layout:
    """Measure the bytes of a cacheable model's cache, by reading two tokens."""
    cache = make_cache()
    mx.eval(model(mx.array([[0, 0]]), cache=cache))
    windows = [window_of(leaf) for leaf in of_kind(cache, "window")]

    def per_token(kind: Kind) -> int:
        return sum(nbytes_of(copy(leaf, Piece(0, kind, 1, 2))) for leaf in of_kind(cache, kind))

    states = [copy(leaf, Piece(0, "state", 0, 2)) for leaf in of_kind(cache, "state")]
    return Layout(
        row_bytes=per_token("rows"),
        window_bytes=per_token("window"),
        window=max(windows, default=None),
        state_bytes=sum(map(nbytes_of, states)),
        recurrent=len(states) > 0,
    )


def of_kind(cache: Iterable[LayerCache], kind: Kind) -> list[Any]:
    return [leaf for leaf in leaves(cache) if _KINDS[type(leaf)] == kind]


def window_of(leaf: Any) -> int:
    if type(leaf) is ChunkedKVCache:
        return int(leaf.chunk_size)
    return int(leaf.max_size)


def bytes_per_token(cache: Cache, kind: Kind) -> int:
    """Return the bytes of a token in the layers of a kind."""
    total = 0
    for leaf in of_kind(cache, kind):
        if leaf.keys is not None:
            rows = leaf.keys[0] if isinstance(leaf.keys, tuple | list) else leaf.keys
            total += nbytes_of((leaf.keys, leaf.values)) // rows.shape[2]
    return total


def copy(leaf: Any, piece: Piece) -> Arrays:
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
    return cut((leaf.keys, leaf.values), piece.start - first, piece.stop - first)


def _copy_rotated(leaf: Any, piece: Piece) -> Arrays:
    """Copy rows of a ring buffer, whose newest row is at `_idx - 1` once it has wrapped around."""
    size, at = leaf.keys.shape[2], leaf._idx
    ring = at < size and at < leaf.offset
    first = leaf.offset - (size if ring else at)
    start, stop = piece.start - first, piece.stop - first
    if start < 0 or piece.stop > leaf.offset:
        raise _gone(leaf, piece)
    if not ring:
        return cut((leaf.keys, leaf.values), start, stop)
    places = (mx.arange(start, stop) + at) % size
    return tree_map(lambda array: mx.take(array, places, axis=2), (leaf.keys, leaf.values))


def cut(arrays: Arrays, start: int, stop: int) -> Arrays:
    """Copy rows [start, stop)."""
    return tree_map(lambda array: mx.contiguous(array[..., start:stop, :]), arrays)


def _gone(leaf: Any, piece: Piece) -> EngineError:
    return EngineError("prefix.gone", layer=type(leaf).__name__, start=piece.start, stop=piece.stop)


def nbytes_of(arrays: Arrays) -> int:
    flat = cast(list[tuple[str, mx.array]], tree_flatten(arrays))
    return sum(array.nbytes for _, array in flat if array is not None)
