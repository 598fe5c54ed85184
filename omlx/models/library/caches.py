"""Caches of mlx-vlm's models, as classes that the engine can roll back, merge and store.

A class of mlx-vlm is a fork of mlx-lm's with the same fields: mlx-lm's takes its place. The rest
are subclasses, which add rollback by snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache as cached
from typing import Any, Final

import mlx.core as mx
from mlx_lm.models import cache as lm
from mlx_vlm.models import cache as vlm

from omlx.engine.device.kinds import Recorded, Snapshot, Trimmed

_OVERLAPPING: Final = "mlx_vlm.models.deepseek_v4.language"
"""Model whose pools of `_OVERLAP_RATIO` tokens read the window before, too."""
_OVERLAP_RATIO: Final = 4
_RECORDING: Final = frozenset({"mlx_vlm.models.qwen4_exp.language"})
"""Models, of one row a pass, whose recurrent states are all updated through the cache."""
_PROJECTING: Final = "mlx_vlm.models.glm5_next.language"
"""Model whose last cache of a layer has projections of long passes, computed again if absent."""


def make_cache(language_model: Any) -> list[Any]:
    """Return empty caches of a language model, one per layer."""
    if hasattr(language_model, "make_cache"):
        caches = language_model.make_cache()
    else:
        caches = [vlm.KVCache() for _ in language_model.layers]
    return [_translated(cache, type(language_model).__module__) for cache in caches]


def _translated(cache: Any, module: str) -> Any:
    """Return the cache of ours or mlx-lm's for an empty cache; others unchanged."""
    if type(cache) is vlm.CacheList:
        parts = [_translated(part, module) for part in cache.caches]
        if module == _PROJECTING:
            parts[-1] = _projected()
        return Parts(*parts)
    if type(cache) is vlm.PoolingCache:
        overlaps = module == _OVERLAPPING and cache.ratio == _OVERLAP_RATIO
        return OverlapPool(cache.ratio) if overlaps else Pool(cache.ratio)
    if type(cache) is vlm.ArraysCache and module in _RECORDING:
        return RecordedStates(len(cache.cache))
    theirs: Any = type(cache)
    if (base := _SPARSE.get(theirs.__name__)) is not None:
        return _derived(base, theirs)()
    make = _MADE.get(theirs)
    return cache if make is None else make(cache)


@cached
def _derived(base: Any, theirs: Any) -> type:
    """Return a subclass of a model's own cache class, which is imported with the model."""
    return type(theirs.__name__, (base, theirs), {})


def _projected() -> Any:
    return Projected()  # type: ignore[no-untyped-call]  # mlx-lm has no type for it


class States(lm.ArraysCache):
    """mlx-lm's recurrent states, with the updates that mlx-vlm's layers ask for."""

    cache: list[Any]
    same_as = lm.ArraysCache
    history_capacity = 0
    is_speculating = False
    metadata_revision = 0

    def update_recurrent(
        self, index: int, length: int, update: Callable[..., tuple[Any, ...]]
    ) -> tuple[mx.array, mx.array]:
        """Return output and new state of `update`, called with the state of entry `index`."""
        output, state = update(self.cache[index], None)[:2]
        self.cache[index] = state
        return output, state

    def update_window(
        self, index: int, source: mx.array, width: int, *, lengths: mx.array | None = None
    ) -> mx.array:
        """Keep the last `width` inputs of `source` [rows, width + tokens, …] in entry `index`.

        `lengths` [rows] are the tokens before padding.
        """
        tokens = source.shape[1] - width
        if lengths is None:
            state = mx.contiguous(source[:, tokens:])
        else:
            columns = mx.clip(lengths, 0, tokens)[:, None] + mx.arange(width)
            shape = (*columns.shape, *[1] * (source.ndim - 2))
            state = mx.take_along_axis(source, columns.reshape(shape), axis=1)
        self.cache[index] = state
        return state

    def extract(self, index: int) -> States:
        row = States(len(self.cache))
        row.cache = [None if state is None else state[index : index + 1] for state in self.cache]
        return row

    def empty(self) -> bool:
        return all(state is None for state in self.cache)


class RecordedStates(States, Recorded):
    """States of layers that compute those behind each token on request.

    A record is the state behind the pass, the length of the pass, and a function from a count of
    read tokens to the state behind them.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._records: dict[int, tuple[Any, int, Callable[[int], Any]]] = {}

    def update_recurrent(
        self, index: int, length: int, update: Callable[..., tuple[Any, ...]]
    ) -> tuple[mx.array, mx.array]:
        before = self.cache[index]
        short = 1 < length <= self.LONGEST
        output, state, *steps = update(before, length - 1 if short else None)
        self.cache[index] = state

        def behind(tokens: int) -> Any:
            return steps[0][:, tokens - 1] if tokens else before

        self._record(index, length, behind)
        return output, state

    def update_window(
        self, index: int, source: mx.array, width: int, *, lengths: mx.array | None = None
    ) -> mx.array:
        state = super().update_window(index, source, width, lengths=lengths)

        def behind(tokens: int) -> Any:
            return mx.contiguous(source[:, tokens : tokens + width])

        self._record(index, source.shape[1] - width, behind)
        return state

    def _record(self, index: int, length: int, behind: Callable[[int], Any]) -> None:
        self._records.pop(index, None)
        if 1 < length <= self.LONGEST:
            self._records[index] = self.cache[index], length, behind

    def records(self, tokens: int) -> bool:
        """Return whether the state before the newest `tokens` tokens is known."""
        for index, state in enumerate(self.cache):
            kept, length, _ = self._records.get(index, (None, 0, None))
            if state is not None and (kept is not state or tokens > length):
                return False
        return True

    def step_back(self, tokens: int) -> None:
        for index, (_, length, behind) in self._records.items():
            self.cache[index] = behind(length - tokens)
        self._records.clear()

    def record(self, states: Sequence[list[Any]]) -> None:
        for index, state in enumerate(self.cache):
            before = [each[index] for each in states]
            self._records[index] = state, len(before), before.__getitem__


class Parts(vlm.CacheList):  # type: ignore[misc]  # an untyped class
    """mlx-vlm's list of caches, which some models ask for by name."""

    same_as = lm.CacheList

    def extract(self, index: int) -> Parts:
        return Parts(*(part.extract(index) for part in self.caches))


class Projected(lm.KVCache, Snapshot):
    """Projected keys and values of fewer tokens than were read; prefixes do without."""

    def fields(self) -> Sequence[Any]:
        return self.keys, self.values, self.offset

    def put_back(self, fields: Sequence[Any]) -> None:
        self.keys, self.values, offset = fields
        self.offset = int(offset)

    def stored(self) -> Sequence[Any]:
        return None, None, 0


class Pool(vlm.PoolingCache, Snapshot):  # type: ignore[misc]  # an untyped class
    """Pooled entries of `ratio` tokens each, and the tokens of the next."""

    def fields(self) -> Sequence[Any]:
        return self.buf_kv, self.buf_gate, self.remainder, self.pooled

    def put_back(self, fields: Sequence[Any]) -> None:
        self.buf_kv, self.buf_gate, remainder, self.pooled = fields
        self.remainder = int(remainder)

    @property
    def span(self) -> int:
        return int(self.ratio)


class OverlapPool(Pool):
    """Pool whose entries are computed from two windows of tokens.

    mlx-vlm's class forgets the window before with each pass, so that entries would depend on how a
    text is cut into passes. Here each pass reads the window before again, and drops its entry.
    """

    def __init__(self, ratio: int) -> None:
        super().__init__(ratio)
        self._before: tuple[mx.array, mx.array] | None = None
        self._repeats = False

    def accumulate_windows(self, kv: mx.array, gate: mx.array, offset: Any) -> Any:
        """Return tokens and gates of complete windows, and the position of the first."""
        tokens, gates, base = super().accumulate_windows(kv, gate, offset)
        if not tokens.shape[1]:
            return tokens, gates, base
        before, newest = self._before, slice(-self.ratio, None)
        self._before = tokens[:, newest], gates[:, newest]
        self._repeats = before is not None
        if before is None:
            return tokens, gates, base
        tokens = mx.concatenate([before[0], tokens], axis=1)
        gates = mx.concatenate([before[1], gates], axis=1)
        return tokens, gates, base - self.ratio

    def update_and_fetch(self, entries: mx.array) -> mx.array:
        """Append new entries [rows, entries, width]; return all."""
        if self._repeats and entries.shape[1]:
            entries, self._repeats = entries[:, 1:], False
        pooled: mx.array = super().update_and_fetch(entries)
        return pooled

    def fields(self) -> Sequence[Any]:
        return *super().fields(), self._before, self._repeats

    def put_back(self, fields: Sequence[Any]) -> None:
        *pool, self._before, repeats = fields
        self._repeats = bool(repeats)
        super().put_back(pool)


class _QSA(Trimmed):
    """Rows of qwen4_exp: keys, values, keys of the indexer and their positions."""

    def rows(self: Any) -> tuple[mx.array, ...] | None:
        if self.keys is None:
            return None
        held, positions = slice(0, self.offset), self.index_position_ids
        if positions.ndim == 2:  # [1, tokens], as long as no image was read
            positions = mx.broadcast_to(positions, (3, *positions.shape))
        positions = positions.transpose(1, 0, 2)
        return (
            self.keys[..., held, :],
            self.values[..., held, :],
            self.index_keys[:, None, held],
            positions[:, :, held, None],
        )

    def put_rows(self: Any, rows: tuple[mx.array, ...], length: int) -> None:
        self.keys, self.values, index_keys, positions = rows
        self.offset = length
        self.index_keys = index_keys[:, 0, :length]
        self.index_position_ids = positions[:, :, :length, 0].transpose(1, 0, 2)


class _BlockSparse(Trimmed):
    """Rows of minimax_m3: keys, values, keys of the indexer."""

    def rows(self: Any) -> tuple[mx.array, ...] | None:
        kept = self.kv_cache
        if kept.keys is None:
            return None
        return tuple(
            array[..., : self.offset, :] for array in (kept.keys, kept.values, self.index_keys)
        )

    def put_rows(self: Any, rows: tuple[mx.array, ...], length: int) -> None:
        self.kv_cache.keys, self.kv_cache.values, self.index_keys = rows
        self.offset = length


_SPARSE: Final[dict[str, type]] = {"QSAKVCache": _QSA, "MiniMaxM3KVCache": _BlockSparse}
"""Base class by name of a model's own cache class."""
_MADE: Final[dict[type, Callable[[Any], Any]]] = {
    vlm.KVCache: lambda cache: lm.KVCache(),
    vlm.ConcatenateKVCache: lambda cache: lm.ConcatenateKVCache(),
    vlm.RotatingKVCache: lambda cache: lm.RotatingKVCache(cache.max_size, keep=cache.keep),
    vlm.ChunkedKVCache: lambda cache: lm.ChunkedKVCache(cache.chunk_size),
    vlm.ArraysCache: lambda cache: States(len(cache.cache)),
}
