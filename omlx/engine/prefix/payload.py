"""Pieces of caches as arrays of their own: copied out of a live cache, put together into a new one.

Never a reference to an array that a cache writes into: it would change, or force a full copy at every step. So a
piece is copied when it is kept, and what a hit returns is copied once more, into arrays with room for the prompt.

| cache                                    | kept as | a hit makes                                                    |
|------------------------------------------|---------|----------------------------------------------------------------|
| KVCache QuantizedKVCache                 | rows    | the rows, and room behind them                                 |
| ConcatenateKVCache                       | rows    | the rows                                                       |
| RotatingKVCache                          | window  | the last `max_size` rows, in temporal order                    |
| ChunkedKVCache                           | window  | the last `chunk_size` rows, beginning where they do            |
| ArraysCache                              | state   | the arrays                                                     |
| CacheList                                | its parts                                                                |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
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
"""Arrays [1, heads, rows, n], as one layer's cache nests them; for a state, what the layer keeps."""

_KINDS: Final[dict[type, Kind]] = {
    KVCache: "rows",
    QuantizedKVCache: "rows",
    ConcatenateKVCache: "rows",
    RotatingKVCache: "window",
    ChunkedKVCache: "window",
    ArraysCache: "state",
}
_STEP: Final = 256
"""What caches grow by, in rows."""


@dataclass(frozen=True, slots=True)
class Payload:
    """One piece: what each layer of its kind keeps of it, in the order of the layers."""

    piece: Piece
    arrays: tuple[Arrays, ...]

    @property
    def nbytes(self) -> int:
        return _nbytes(self.arrays)


class Payloads:
    """The pieces of one model's caches, by id."""

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

    def keep(self, cache: Cache, pieces: Iterable[Piece]) -> None:
        """Copy pieces out of a live cache, whose length is what they go up to or more. Waits for the copies.

        Raises EngineError, keeping none, if the cache does not hold the rows.
        """
        kept = [
            Payload(piece, tuple(_copy(leaf, piece) for leaf in _of_kind(cache, piece.kind)))
            for piece in pieces
        ]
        mx.eval([payload.arrays for payload in kept])
        self._kept.update((payload.piece.id, payload) for payload in kept)

    def build(self, pieces: Sequence[int], length: int, prompt: int) -> Cache:
        """A new cache of `length` tokens, with room for a prompt of `prompt`. The pieces stay as they are."""
        cache = self._make_cache()
        payloads = [self._kept[piece] for piece in pieces]
        for kind in ("rows", "window", "state"):
            parts = sorted(
                (p for p in payloads if p.piece.kind == kind),
                key=lambda payload: payload.piece.start,
            )
            for i, leaf in enumerate(_of_kind(cache, kind)):
                held = [payload.arrays[i] for payload in parts if payload.arrays[i] is not None]
                if held:
                    _fill(
                        leaf,
                        held,
                        length - (parts[0].piece.start if kind != "state" else 0),
                        length,
                        prompt,
                    )
        return cache

    def evict(self, pieces: Iterable[int]) -> None:
        for piece in pieces:
            self._kept.pop(piece, None)


def uncacheable(cache: Iterable[LayerCache]) -> Reason | None:
    """Why prefixes of such a cache cannot be kept, or None."""
    parts = leaves(cache)
    if strange := sorted({type(leaf).__name__ for leaf in parts if type(leaf) not in _KINDS}):
        return Reason("prefix.off.cache", {"layers": ", ".join(strange)})
    windows = {_window(leaf) for leaf in parts if _KINDS[type(leaf)] == "window"}
    if len(windows) > 1 or any(getattr(leaf, "keep", 0) for leaf in parts):
        return Reason("prefix.off.windows", {"windows": ", ".join(map(str, sorted(windows)))})
    return None


def layout_of(model: Model, make_cache: MakeCache) -> Layout:
    """What a model's cache takes, seen by reading two tokens. The cache is one that `uncacheable` has nothing against."""
    cache = make_cache()
    mx.eval(model(mx.array([[0, 0]]), cache=cache))
    windows = [_window(leaf) for leaf in _of_kind(cache, "window")]

    def per_token(kind: Kind) -> int:
        return sum(_nbytes(_copy(leaf, Piece(0, kind, 1, 2))) for leaf in _of_kind(cache, kind))

    return Layout(
        row_bytes=per_token("rows"),
        window_bytes=per_token("window"),
        window=max(windows, default=None),
        state_bytes=sum(
            _nbytes(_copy(leaf, Piece(0, "state", 0, 2))) for leaf in _of_kind(cache, "state")
        ),
        recurrent=bool(_of_kind(cache, "state")),
    )


def _of_kind(cache: Iterable[LayerCache], kind: Kind) -> list[Any]:
    return [leaf for leaf in leaves(cache) if _KINDS[type(leaf)] == kind]


def _window(leaf: Any) -> int:
    return int(leaf.chunk_size if type(leaf) is ChunkedKVCache else leaf.max_size)


def _copy(leaf: Any, piece: Piece) -> Arrays:
    """What a layer keeps of a piece; None where it has read nothing."""
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
    """Rows of a ring: it runs on from its end to its start, unless it is in temporal order."""
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
    """Give an empty layer the first `rows` rows of `parts` together, so that it stands at `length` tokens."""
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
    """Rows [start, stop) of `parts` put together, followed by zeros up to `room` rows. One copy."""

    def join(*arrays: mx.array) -> mx.array:
        found, at = [], 0
        for array in arrays:
            n = array.shape[2]
            if at + n > start and at < stop:
                found.append(array[..., max(0, start - at) : min(n, stop - at), :])
            at += n
        if room > stop - start:
            first = arrays[0]
            found.append(
                mx.zeros((*first.shape[:2], room - (stop - start), first.shape[3]), first.dtype)
            )
        return mx.concatenate(found, axis=2)

    return tree_map(join, parts[0], *parts[1:])


def _gone(leaf: Any, piece: Piece) -> EngineError:
    return EngineError("prefix.gone", layer=type(leaf).__name__, start=piece.start, stop=piece.stop)


def _nbytes(arrays: Arrays) -> int:
    return sum(
        array.nbytes
        for _, array in cast(list[tuple[str, mx.array]], tree_flatten(arrays))
        if array is not None
    )
