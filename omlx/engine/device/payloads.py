"""The arrays of cache pieces: copied out of a live cache, concatenated into a new one.

Never a view of an array that a cache writes into: it would change, or force a copy of the whole
array at every step. So a piece is copied when it is saved, and again when it is restored. Payloads
read from disk are copies already, and are kept themselves. Adjacent pieces are copied together.

| cache                        | saved as  | restored                                            |
|------------------------------|-----------|-----------------------------------------------------|
| KVCache QuantizedKVCache     | rows      | the rows, and room behind them                      |
| Trimmed                      | rows      | by the class                                        |
| ConcatenateKVCache           | rows      | the rows                                            |
| RotatingKVCache              | window    | the last `max_size` rows, in temporal order         |
| ChunkedKVCache               | window    | the last `chunk_size` rows, where they begin        |
| ArraysCache                  | state     | the arrays                                          |
| CacheList                    | its parts |                                                     |
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias, cast

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map
from mlx_lm.models import cache as lm

from omlx.engine.device.model import (
    Cache,
    LayerCache,
    MakeCache,
    Model,
    Trimmed,
    cache_kind,
    copy_state,
    span_of,
)
from omlx.engine.device.rewind import leaves, traits
from omlx.engine.disk.record import Record, RecordId, Run
from omlx.engine.disk.serial import to_arrays, to_record
from omlx.engine.piece import Kind, Layout, Piece, runs
from omlx.errors import EngineError, Reason

_STEP: Final = 256
"""Rows by which mlx-lm's caches grow."""


@dataclass(frozen=True, slots=True)
class Payload:
    """The arrays of tokens [start, stop): one entry per layer of a kind, in their order."""

    kind: Kind
    start: int
    stop: int
    arrays: tuple[Arrays, ...]

    @property
    def nbytes(self) -> int:
        return nbytes_of(self.arrays)

    def part(self, start: int, stop: int) -> Payload:
        """Copy tokens [start, stop) of a payload that is no state."""
        first, last = start - self.start, stop - self.start
        arrays = [None if layer is None else cut(layer, first, last) for layer in self.arrays]
        return Payload(self.kind, start, stop, tuple(arrays))


@dataclass(frozen=True, slots=True)
class Share:
    """Tokens [start, stop) of a payload; all of it if it is a state."""

    start: int
    stop: int
    payload: Payload

    @property
    def nbytes(self) -> int:
        payload = self.payload
        return payload.nbytes * (self.stop - self.start) // (payload.stop - payload.start)


class Payloads:
    """The arrays of all cached pieces of one model, by id of the piece.

    Adjacent pieces saved together share payloads of about `RUN_BYTES`. The rest of a payload is
    copied out once less than half is left: memory is at most twice `nbytes`. `moved` has the pieces
    copied so, until the step that did it takes them.
    """

    def __init__(self, make_cache: MakeCache) -> None:
        self._make_cache = make_cache
        self._kept: dict[int, Share] = {}
        self.moved: set[int] = set()

    def __getitem__(self, piece: int) -> Share:
        return self._kept[piece]

    def __iter__(self) -> Iterator[int]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def nbytes(self) -> int:
        return sum(share.nbytes for share in self._kept.values())

    def keep(self, cache: Cache, pieces: Iterable[Piece], loaded: Iterable[Payload] = ()) -> None:
        """Copy pieces out of a live cache that is at least as long. Waits for the copies.

        Payloads of which the cache was assembled (`loaded`) are kept themselves where they hold a
        piece. Raises EngineError, and keeps none, if the cache lacks the rows of a piece.
        """
        kept, missing = dict[int, Share](), list[Piece]()
        known = sorted(loaded, key=_order)
        for piece in pieces:
            share = _share_of(known, piece)
            if share is None:
                missing.append(piece)
            else:
                kept[piece.id] = share
        copies: list[Payload] = []
        row_bytes = {kind: bytes_per_token(cache, kind) for kind in ("rows", "window")}
        for run in runs(missing, lambda piece: piece.tokens * row_bytes.get(piece.kind, 0)):
            whole = Piece(0, run[0].kind, run[0].start, run[-1].stop)
            arrays = tuple(copy(layer, whole) for layer in of_kind(cache, whole.kind))
            copies.append(Payload(whole.kind, whole.start, whole.stop, arrays))
            kept.update({piece.id: Share(piece.start, piece.stop, copies[-1]) for piece in run})
        mx.eval([payload.arrays for payload in copies])
        self._kept.update(kept)

    def build(self, pieces: Sequence[int], length: int, prompt: int) -> Cache:
        """Return a new cache of `length` tokens with room for a prompt of `prompt` tokens.

        The pieces are copied.
        """
        return _assemble(self._make_cache(), [self._kept[id] for id in pieces], length, prompt)

    def take_moved(self) -> dict[int, Payload]:
        """Return the payloads of pieces that have moved since the last call, by id."""
        if not self.moved:
            return {}
        moved, self.moved = self.moved & self._kept.keys(), set()
        return {piece: self._kept[piece].payload for piece in moved}

    def to_record(self, id: RecordId, piece: Piece) -> Record | None:
        """Copy the arrays of a piece into bytes; None if they are not there."""
        share = self._kept.get(piece.id)
        if share is None:
            return None
        payload = share.payload
        rows = None
        if piece.kind != "state":
            rows = slice(share.start - payload.start, share.stop - payload.start)
        return to_record(id, payload.arrays, rows)

    def evict(self, pieces: Iterable[int]) -> None:
        lost = [self._kept.pop(piece) for piece in pieces if piece in self._kept]
        left: dict[int, list[int]] = {id(share.payload): [] for share in lost}
        if not left:
            return
        for piece, share in self._kept.items():
            if id(share.payload) in left:
                left[id(share.payload)].append(piece)
        for sharing in left.values():
            self._separate(sharing)

    def _separate(self, pieces: Sequence[int]) -> None:
        """Copy the rest of a payload, if less than half is left."""
        shares = {piece: self._kept[piece] for piece in pieces}
        if not shares:
            return
        payload = shares[pieces[0]].payload
        tokens = sum(share.stop - share.start for share in shares.values())
        if 2 * tokens >= payload.stop - payload.start:
            return
        spans = [Piece(id, payload.kind, share.start, share.stop) for id, share in shares.items()]
        for run in runs(sorted(spans, key=_order), lambda span: 0):
            part = payload.part(run[0].start, run[-1].stop)
            mx.async_eval(part.arrays)  # the next pass need not wait for it
            self._kept.update({span.id: Share(span.start, span.stop, part) for span in run})
            self.moved.update(span.id for span in run)


def assemble(cache: Cache, payloads: Iterable[Payload], length: int, prompt: int) -> Cache:
    """Fill a new cache with payloads of `length` tokens, and room for a prompt of `prompt`."""
    shares = [Share(payload.start, payload.stop, payload) for payload in payloads]
    return _assemble(cache, shares, length, prompt)


def _assemble(cache: Cache, shares: Iterable[Share], length: int, prompt: int) -> Cache:
    shares = _joined(shares)
    for kind in ("rows", "window", "state"):
        alike = [share for share in shares if share.payload.kind == kind]
        for i, layer in enumerate(of_kind(cache, kind)):
            parts = [share for share in alike if share.payload.arrays[i] is not None]
            if parts:
                _fill(layer, i, parts, length, prompt)
    return cache


def _joined(shares: Iterable[Share]) -> list[Share]:
    """Return shares by kind, in the order of their tokens; those of one payload are one."""
    joined: list[Share] = []
    for share in sorted(shares, key=lambda share: (share.payload.kind, share.start)):
        if joined and joined[-1].payload is share.payload:
            joined[-1] = replace(joined[-1], stop=share.stop)
        else:
            joined.append(share)
    return joined


def read_payloads(runs: Iterable[Run]) -> list[Payload]:
    """Copy runs read from disk. Waits for the copies."""
    payloads = [Payload(run.kind, run.start, run.stop, to_arrays(run)) for run in runs]
    mx.eval([payload.arrays for payload in payloads])
    return payloads


def _order(span: Payload | Piece) -> tuple[str, int]:
    return span.kind, span.start


def _share_of(payloads: Sequence[Payload], piece: Piece) -> Share | None:
    """Return the share of the ordered payloads that holds a piece; None if none does."""
    at = bisect_right(payloads, _order(piece), key=_order) - 1
    payload = payloads[at] if at >= 0 else None
    if payload is None or payload.kind != piece.kind or payload.stop < piece.stop:
        return None
    if piece.kind != "state":
        return Share(piece.start, piece.stop, payload)
    return Share(payload.start, payload.stop, payload) if payload.stop == piece.stop else None


def _fill(leaf: Any, i: int, parts: Sequence[Share], length: int, prompt: int) -> None:
    """Fill an empty layer, the one number `i` of its kind, up to token `length`."""
    kind = cache_kind(type(leaf))
    if _KINDS[kind] == "state":
        leaf.cache = list(parts[-1].payload.arrays[i])
        return
    if kind is lm.RotatingKVCache or kind is lm.ChunkedKVCache:
        kept = min(length - parts[0].start, window_of(leaf))
        leaf.keys, leaf.values = _join(i, parts, length - kept, length, kept)
        leaf.offset = length
        if kind is lm.RotatingKVCache:
            leaf._idx = kept
        else:
            leaf.start_position = length - kept
        return
    room = length if kind is lm.ConcatenateKVCache else _STEP * (1 + max(length, prompt) // _STEP)
    rows = _join(i, parts, 0, length, room)
    if kind is Trimmed:
        leaf.put_rows(rows, length)
    else:
        leaf.keys, leaf.values = rows
        leaf.offset = length


def _join(i: int, parts: Sequence[Share], start: int, stop: int, room: int) -> Arrays:
    """Concatenate tokens [start, stop) of layer `i`, padded with zeros to `room` rows, at once."""

    def join(*arrays: mx.array) -> mx.array:
        spans: list[mx.array] = []
        for array, part in zip(arrays, parts, strict=True):
            first, last = max(start, part.start), min(stop, part.stop)
            if first < last:
                offset = part.payload.start
                spans.append(array[..., first - offset : last - offset, :])
        if room > stop - start:
            batch, heads, _, width = arrays[0].shape
            spans.append(mx.zeros((batch, heads, room - (stop - start), width), arrays[0].dtype))
        return mx.concatenate(spans, axis=2)

    return tree_map(join, *(part.payload.arrays[i] for part in parts))


Arrays: TypeAlias = Any
"""Arrays [1, heads, rows, n], nested as in a layer's cache; for a state, what the layer keeps."""

_KINDS: Final[Mapping[type | None, Kind]] = {
    lm.KVCache: "rows",
    Trimmed: "rows",
    lm.QuantizedKVCache: "rows",
    lm.ConcatenateKVCache: "rows",
    lm.RotatingKVCache: "window",
    lm.ChunkedKVCache: "window",
    lm.ArraysCache: "state",
}


def uncacheable(cache: Iterable[LayerCache]) -> Reason | None:
    """Return why prefixes of such a cache cannot be cached, or None."""
    parts = leaves(cache)
    strange = [type(leaf) for leaf in parts if cache_kind(type(leaf)) not in _KINDS]
    unknown = sorted({layer.__name__ for layer in strange})
    if unknown:
        return Reason("prefix.off.cache", {"layers": ", ".join(unknown)})
    windows = {window_of(leaf) for leaf in of_kind(cache, "window")}
    if len(windows) > 1 or any(getattr(leaf, "keep", 0) for leaf in parts):
        return Reason("prefix.off.windows", {"windows": ", ".join(map(str, sorted(windows)))})
    return None


def layout_of(model: Model, make_cache: MakeCache) -> Layout:
    """Measure bytes of a cacheable model's cache on two tokens, and after entries of states."""
    cache = make_cache()
    mx.eval(model(mx.array([[0, 0]]), cache=cache))
    windows, states = (of_kind(cache, kind) for kind in ("window", "state"))

    def nbytes(kind: Kind) -> int:
        return sum(nbytes_of(copy(leaf, Piece(0, kind, 1, 2))) for leaf in of_kind(cache, kind))

    layout = Layout(
        row_bytes=nbytes("rows"),
        window_bytes=nbytes("window"),
        window=max(map(window_of, windows), default=None),
        state_bytes=nbytes("state"),
        recurrent=len(states) > 0,
        record_bytes=traits(cache).recorded * nbytes("state"),
    )
    span = span_of(states)
    if not span:
        return layout
    mx.eval(model(mx.zeros((1, span), mx.int32), cache=cache))
    return replace(layout, growth_bytes=-((layout.state_bytes - nbytes("state")) // span))


def of_kind(cache: Iterable[LayerCache], kind: Kind) -> list[Any]:
    return [leaf for leaf in leaves(cache) if _KINDS.get(cache_kind(type(leaf))) == kind]


def window_of(leaf: Any) -> int:
    if cache_kind(type(leaf)) is lm.ChunkedKVCache:
        return int(leaf.chunk_size)
    return int(leaf.max_size)


def bytes_per_token(cache: Cache, kind: Kind) -> int:
    """Return the bytes of a token in the layers of a kind."""
    total = 0
    for leaf in of_kind(cache, kind):
        rows = _rows(leaf)
        if rows is not None:
            first = rows[0][0] if isinstance(rows[0], tuple | list) else rows[0]
            total += nbytes_of(rows) // first.shape[2]
    return total


def _rows(leaf: Any) -> Arrays:
    """Return the arrays of a layer with a row per token; None before the first pass."""
    arrays = leaf.rows() if cache_kind(type(leaf)) is Trimmed else (leaf.keys, leaf.values)
    return None if arrays is None or arrays[0] is None else arrays


def copy(leaf: Any, piece: Piece) -> Arrays:
    """Copy a layer's part of a piece; None where the layer has read nothing."""
    if piece.kind == "state":
        return copy_state(leaf)
    rows, kind = _rows(leaf), cache_kind(type(leaf))
    if rows is None:
        return None
    if kind is lm.RotatingKVCache:
        return _copy_rotated(leaf, piece)
    first = leaf.start_position if kind is lm.ChunkedKVCache else 0
    if piece.start < first or piece.stop > leaf.offset:
        raise _gone(leaf, piece)
    return cut(rows, piece.start - first, piece.stop - first)


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
