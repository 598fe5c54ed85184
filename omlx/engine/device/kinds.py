"""Kinds of layer caches: one answer for the classes of every library.

A kind is a class of mlx-lm, or one of two generic base classes. A class of another library names
in `same_as` the class of mlx-lm with the same fields and meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, ClassVar, Final

import mlx.core as mx
from mlx.utils import tree_map
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
    """Base class of caches with an exact `trim` and a token count, `offset`."""

    def rows(self) -> tuple[mx.array, ...] | None:
        """Return arrays [1, heads, tokens, width] of all tokens; None before the first pass."""
        raise NotImplementedError

    def put_rows(self, rows: tuple[mx.array, ...], length: int) -> None:
        """Fill an empty cache with `length` tokens; the arrays may have more rows."""
        raise NotImplementedError


class Snapshot:
    """Base class of caches rolled back, and stored with prefixes, by copies of `names`.

    `span` tokens add an entry to the fields; 0: none does.
    """

    names: ClassVar[tuple[str, ...]]
    span: int = 0

    def fields(self) -> Sequence[Any]:
        """Return arrays and integers. A later pass may write into the same arrays."""
        return tuple(getattr(self, name) for name in self.names)

    def put_back(self, fields: Sequence[Any]) -> None:
        """Replace all fields by earlier `fields`, whose integers may be arrays."""
        for name, value in zip(self.names, fields, strict=True):
            kind = type(getattr(self, name))
            setattr(self, name, kind(value) if issubclass(kind, int) else value)

    def stored(self) -> Sequence[Any]:
        """Return the fields that a prefix needs."""
        return self.fields()


class Recorded:
    """Base class of recurrent states that record those behind each token of a short pass."""

    LONGEST: Final = 8
    """Tokens — length of passes with a record: a state per token takes memory."""

    def begin(self, tokens: int) -> None:
        """Drop the record, and begin another if the next pass, of `tokens` tokens, is short."""
        raise NotImplementedError

    def records(self, tokens: int) -> bool:
        """Return whether the state before the newest `tokens` tokens is known."""
        raise NotImplementedError

    def step_back(self, tokens: int) -> None:
        """Return to that state, and drop the record."""
        raise NotImplementedError


_KNOWN: Final = frozenset(
    {
        *(KVCache, QuantizedKVCache, ChunkedKVCache, ConcatenateKVCache),
        *(RotatingKVCache, ArraysCache, CacheList),
    }
)
ATTENTION: Final = frozenset({KVCache, QuantizedKVCache, RotatingKVCache})
"""Kinds whose rows share a ragged buffer."""


def _kind_of(layer: type) -> type | None:
    for generic in (Trimmed, Snapshot):
        if issubclass(layer, generic):
            return generic
    kind = getattr(layer, "same_as", layer)
    return kind if kind in _KNOWN else None


kind_of: Final[Callable[[type], type | None]] = cache(_kind_of)
"""Returns the kind of a class of layer caches; None for an unknown one."""

GROUP: Final = 32
"""Numbers of a head with one scale and bias — half the error of mlx-lm's default of 64."""


def quantized(cache: Iterable[Any], bits: int) -> list[Any]:
    """Return empty caches with quantized ones for plain KV caches; sliding and recurrent stay."""
    return [_quantized(leaf, bits) for leaf in cache]


def _quantized(leaf: Any, bits: int) -> Any:
    if kind_of(type(leaf)) is CacheList:
        return type(leaf)(*quantized(leaf.caches, bits))
    if type(leaf) is KVCache:
        return QuantizedKVCache(GROUP, bits)
    return leaf


def handle(value: Any) -> Any:
    """Return a new handle of each array: a later write in place leaves the handle's data alone."""
    if isinstance(value, mx.array):
        return mx.array(value)
    if isinstance(value, tuple | list):
        return tuple(map(handle, value))
    return value


def copy_state(leaf: Any) -> Any:
    """Copy what a recurrent layer or snapshot keeps: nested arrays, integers as arrays."""
    return tree_map(_copied, leaf.stored() if kind_of(type(leaf)) is Snapshot else leaf.cache)


def put_state(leaf: Any, state: Sequence[Any]) -> None:
    """Fill an empty layer with a copied state, for later use by other layers as well."""
    if kind_of(type(leaf)) is Snapshot:
        leaf.put_back(handle(state))
    else:
        leaf.cache = list(state)


def _copied(value: mx.array | int | None) -> mx.array | None:
    return None if value is None else mx.contiguous(mx.array(value))
