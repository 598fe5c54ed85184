"""Caches of mlx-vlm's models, as classes that the engine can roll back, merge and store.

A class of mlx-vlm is a fork of mlx-lm's with the same fields: mlx-lm's takes its place. The rest
are subclasses with fields that the engine can roll back and store.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from functools import cache as cached
from typing import Any, ClassVar, Final

import mlx.core as mx
from mlx_lm.models import cache as lm
from mlx_vlm.models import cache as vlm

from omlx.engine.device.model import Recorded, Trimmed, handle


def make_cache(
    language_model: Any, overlaps: Container[int] = (), *, recorded: bool = False
) -> list[Any]:
    """Return empty caches of a language model, one per layer.

    Entries of `overlaps` tokens are computed from two windows. `recorded`: passes begin records.
    """
    caches = vlm.make_prompt_cache(language_model)
    parts = [part for cache in caches for part in getattr(cache, "caches", ())]
    pooled = any(type(part) is vlm.PoolingCache for part in parts)

    def translated(cache: Any) -> Any:
        theirs: Any = type(cache)
        if theirs is vlm.CacheList:
            own = [translated(part) for part in cache.caches]
            if pooled and type(own[-1]) is lm.KVCache:  # fewer entries than tokens
                own[-1] = Projected()  # type: ignore[no-untyped-call]  # mlx-lm has no type for it
            return Parts(*own)
        if theirs is vlm.PoolingCache:
            return (OverlapPool if cache.ratio in overlaps else Pool)(cache.ratio)
        if theirs is vlm.ArraysCache:
            return (RecordedStates if recorded else States)(len(cache.cache))
        if theirs in _FORKS:
            fork: Any = object.__new__(getattr(lm, theirs.__name__))
            vars(fork).update(vars(cache))
            return fork
        base = next((base for field, base in _SPARSE.items() if hasattr(cache, field)), None)
        return cache if base is None else _derived(base, theirs)()

    return [translated(cache) for cache in caches]


@cached
def _derived(base: Any, theirs: Any) -> type:
    """Return a subclass of a model's own cache class, which is imported with the model."""
    return type(theirs.__name__, (base, theirs), {})


class States(lm.ArraysCache, vlm.ArraysCache):  # type: ignore[misc]  # an untyped class
    """mlx-lm's recurrent states, with the updates and records of mlx-vlm's."""

    same_as = lm.ArraysCache
    empty = vlm.ArraysCache.empty
    extract = vlm.ArraysCache.extract
    nbytes = vlm.ArraysCache.nbytes


class RecordedStates(States, Recorded):
    """States that passes of a model record."""


class Parts(vlm.CacheList):  # type: ignore[misc]  # an untyped class
    """mlx-vlm's list of caches, which some models ask for by name."""

    same_as = lm.CacheList

    def extract(self, index: int) -> Parts:
        return Parts(*(part.extract(index) for part in self.caches))


class _Fields:
    """Base class of caches of one row whose fields `names` are rolled back and stored like states.

    A pass may write into the arrays of fields.
    """

    same_as = lm.ArraysCache
    merge = left_padding = lengths = None
    names: ClassVar[tuple[str, ...]]

    @property
    def cache(self) -> list[Any]:
        return [handle(getattr(self, name)) for name in self.names]

    @cache.setter
    def cache(self, fields: Sequence[Any]) -> None:
        for name, value in zip(self.names, fields, strict=True):
            kind = type(getattr(self, name))
            setattr(self, name, kind(value) if issubclass(kind, int) else handle(value))


class Projected(_Fields, lm.KVCache):  # type: ignore[misc]  # it does not merge
    """Projected keys and values of fewer tokens than were read; prefixes do without."""

    names = ("keys", "values", "offset")
    stored = (None, None, 0)


class Pool(_Fields, vlm.PoolingCache):  # type: ignore[misc]  # an untyped class
    """Pooled entries of `ratio` tokens each, and the tokens of the next."""

    names: ClassVar[tuple[str, ...]] = ("buf_kv", "buf_gate", "remainder", "pooled")


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
_FORKS: Final = (vlm.KVCache, vlm.ConcatenateKVCache, vlm.RotatingKVCache, vlm.ChunkedKVCache)
"""Classes with the names and the fields of mlx-lm's."""
