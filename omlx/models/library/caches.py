"""Caches of mlx-vlm's models, as classes that the engine can roll back, merge and store.

A class of mlx-vlm is a fork of mlx-lm's with the same fields: mlx-lm's takes its place. The rest
are subclasses, which add rollback by snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache as cached
from typing import Any, ClassVar, Final

import mlx.core as mx
from mlx_lm.models import cache as lm
from mlx_vlm.models import cache as vlm

from omlx.engine.device.kinds import Recorded, Snapshot, Trimmed

_OVERLAPPING: Final = ("mlx_vlm.models.deepseek_v4.language", 4)
"""Model whose pools read the window before, too, and their number of tokens an entry."""
_RECORDING: Final = "mlx_vlm.models.qwen4_exp.language"
"""Model, of one row a pass, whose body begins records."""
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
    theirs: Any = type(cache)
    if theirs is vlm.CacheList:
        parts = [_translated(part, module) for part in cache.caches]
        if module == _PROJECTING:
            parts[-1] = Projected()  # type: ignore[no-untyped-call]  # mlx-lm has no type for it
        return Parts(*parts)
    if theirs is vlm.PoolingCache:
        overlaps = (module, cache.ratio) == _OVERLAPPING
        return OverlapPool(cache.ratio) if overlaps else Pool(cache.ratio)
    if theirs is vlm.ArraysCache:
        made = RecordedStates if module == _RECORDING else States
        return made(len(cache.cache))
    for field, base in _SPARSE.items():
        if hasattr(cache, field):
            return _derived(base, theirs)()
    make = _FORKS.get(theirs)
    return cache if make is None else make(cache)


@cached
def _derived(base: Any, theirs: Any) -> type:
    """Return a subclass of a model's own cache class, which is imported with the model."""
    return type(theirs.__name__, (base, theirs), {})


class States(lm.ArraysCache, vlm.ArraysCache):  # type: ignore[misc]  # an untyped class
    """mlx-lm's recurrent states, with the updates and records of mlx-vlm's."""

    same_as = lm.ArraysCache
    empty = vlm.ArraysCache.empty
    nbytes = vlm.ArraysCache.nbytes

    def extract(self, index: int) -> States:
        row = States(len(self.cache))
        row.cache = [None if state is None else state[index : index + 1] for state in self.cache]
        return row


class RecordedStates(States, Recorded):
    """States of layers that compute those behind each token on request."""

    def begin(self, tokens: int) -> None:
        states = self.cache
        self.abort_speculation()
        self.cache = states
        if 1 < tokens <= self.LONGEST:
            self.start_speculation(tokens)

    def records(self, tokens: int) -> bool:
        return bool(tokens <= self.history_capacity)

    def step_back(self, tokens: int) -> None:
        self.commit_speculation([self.history_capacity - tokens])


class Parts(vlm.CacheList):  # type: ignore[misc]  # an untyped class
    """mlx-vlm's list of caches, which some models ask for by name."""

    same_as = lm.CacheList

    def extract(self, index: int) -> Parts:
        return Parts(*(part.extract(index) for part in self.caches))


class Projected(lm.KVCache, Snapshot):
    """Projected keys and values of fewer tokens than were read; prefixes do without."""

    names = ("keys", "values", "offset")

    def stored(self) -> Sequence[Any]:
        return None, None, 0


class Pool(vlm.PoolingCache, Snapshot):  # type: ignore[misc]  # an untyped class
    """Pooled entries of `ratio` tokens each, and the tokens of the next."""

    names: ClassVar[tuple[str, ...]] = ("buf_kv", "buf_gate", "remainder", "pooled")

    def __init__(self, ratio: int) -> None:
        super().__init__(ratio)
        self.span = ratio


class OverlapPool(Pool):
    """Pool whose entries are computed from two windows of tokens.

    mlx-vlm's class forgets the window before with each pass, so that entries would depend on how a
    text is cut into passes. Here each pass reads the window before again, and drops its entry.
    """

    names = (*Pool.names, "_before", "_repeats")

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


class _QSA(Trimmed):
    """Rows of qwen4_exp: keys, values, keys of the indexer and their positions."""

    def rows(self: Any) -> tuple[mx.array, ...] | None:
        if self.keys is None:
            return None
        positions = self.index_position_ids
        if positions.ndim == 2:  # [1, tokens], as long as no image was read
            positions = mx.broadcast_to(positions, (3, *positions.shape))
        index = self.index_keys[:, None], positions.transpose(1, 0, 2)[..., None]
        return tuple(array[..., : self.offset, :] for array in (self.keys, self.values, *index))

    def put_rows(self: Any, rows: tuple[mx.array, ...], length: int) -> None:
        self.keys, self.values, keys, positions = rows
        self.offset = length
        self.index_keys = keys[:, 0, :length]
        self.index_position_ids = positions[:, :, :length, 0].transpose(1, 0, 2)


class _BlockSparse(Trimmed):
    """Rows of minimax_m3: keys, values, keys of the indexer."""

    def rows(self: Any) -> tuple[mx.array, ...] | None:
        kept = self.kv_cache
        if kept.keys is None:
            return None
        arrays = kept.keys, kept.values, self.index_keys
        return tuple(array[..., : self.offset, :] for array in arrays)

    def put_rows(self: Any, rows: tuple[mx.array, ...], length: int) -> None:
        self.kv_cache.keys, self.kv_cache.values, self.index_keys = rows
        self.offset = length


_SPARSE: Final[dict[str, type]] = {"index_position_ids": _QSA, "index_offset": _BlockSparse}
"""Base class for a model's own cache class, by a field that it reads."""
_FORKS: Final[dict[type, Callable[[Any], Any]]] = {
    vlm.KVCache: lambda cache: lm.KVCache(),
    vlm.ConcatenateKVCache: lambda cache: lm.ConcatenateKVCache(),
    vlm.RotatingKVCache: lambda cache: lm.RotatingKVCache(cache.max_size, keep=cache.keep),
    vlm.ChunkedKVCache: lambda cache: lm.ChunkedKVCache(cache.chunk_size),
}
"""Makers of mlx-lm's cache with the same fields, by class."""
