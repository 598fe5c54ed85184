"""Kinds of layer caches: one answer for the classes of every library.

A kind is a class of mlx-lm, or one of two generic kinds. A class of another library declares
`same_as`, the kind with the same fields and meaning; `Snapshot` is a base class.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import mlx.core as mx
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)


class Trimmed:
    """Kind of caches with exact `trim`, token count `offset`, and other fields than mlx-lm's."""


class Snapshot:
    """Base class of caches rolled back by a copy of all fields."""

    def fields(self) -> Sequence[Any]:
        """Return arrays and plain values. A later pass may write into the same arrays."""
        raise NotImplementedError

    def put_back(self, fields: Sequence[Any]) -> None:
        """Replace all fields by earlier `fields`."""
        raise NotImplementedError


_KNOWN: Final = frozenset(
    {
        *(KVCache, QuantizedKVCache, ChunkedKVCache, ConcatenateKVCache),
        *(RotatingKVCache, ArraysCache, CacheList, Trimmed, Snapshot),
    }
)
_TRIMMED: Final = frozenset(
    {
        ("mlx_vlm.models.qwen4_exp.language", "QSAKVCache"),
        ("mlx_vlm.models.minimax_m3_vl.language", "MiniMaxM3KVCache"),
    }
)
"""Modules and names of classes whose `trim` the tiny models of tests/zoo prove."""
ATTENTION: Final = frozenset({KVCache, RotatingKVCache})
"""Kinds whose rows share a ragged buffer."""


def kind_of(leaf: object) -> type | None:
    """Return the kind of a layer cache; None for an unknown class."""
    cls = type(leaf)
    if (cls.__module__, cls.__name__) in _TRIMMED:
        return Trimmed
    kind = Snapshot if isinstance(leaf, Snapshot) else getattr(cls, "same_as", cls)
    return kind if kind in _KNOWN else None


def handle(value: Any) -> Any:
    """Return a new handle of each array: a later write in place leaves the handle's data alone."""
    if isinstance(value, mx.array):
        return mx.array(value)
    if isinstance(value, tuple | list):
        return tuple(map(handle, value))
    return value
