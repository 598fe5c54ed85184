"""Kinds of layer caches: one answer for the classes of every library.

A kind is a class of mlx-lm, or `Trimmed`. A class of another library names in `same_as` the class
of mlx-lm with the same fields and meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Final

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
    """Base class of caches of one row, with an exact `trim` and a token count, `offset`."""

    merge = None

    def rows(self) -> tuple[mx.array, ...] | None:
        """Return arrays [1, heads, tokens, width] of all tokens; None before the first pass."""
        raise NotImplementedError

    def put_rows(self, rows: tuple[mx.array, ...], length: int) -> None:
        """Fill an empty cache with `length` tokens; the arrays may have more rows."""
        raise NotImplementedError


class Recorded:
    """Base class of recurrent states that record those behind each token of a short pass.

    For a class with the records of mlx-vlm's `ArraysCache`.
    """

    LONGEST: Final = 8
    """Tokens — length of passes with a record: a state per token takes memory."""

    def begin(self: Any, tokens: int) -> None:
        """Drop the record, and begin another if the next pass, of `tokens` tokens, is short."""
        states = self.cache
        self.abort_speculation()
        self.cache = states
        if 1 < tokens <= self.LONGEST:
            self.start_speculation(tokens)

    def records(self: Any, tokens: int) -> bool:
        """Return whether the state before the newest `tokens` tokens is known."""
        return bool(tokens <= self.history_capacity)

    def step_back(self: Any, tokens: int) -> None:
        """Return to that state, and drop the record."""
        self.commit_speculation([self.history_capacity - tokens])


ATTENTION: Final = frozenset({KVCache, QuantizedKVCache, RotatingKVCache})
"""Kinds whose rows share a ragged buffer."""
_KNOWN: Final = ATTENTION | {ChunkedKVCache, ConcatenateKVCache, ArraysCache, CacheList}


def _kind_of(layer: type) -> type | None:
    if issubclass(layer, Trimmed):
        return Trimmed
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
    """Copy what a recurrent layer keeps, and a prefix needs: nested arrays, integers as arrays."""

    def copied(value: mx.array | int | None) -> mx.array | None:
        return None if value is None else mx.contiguous(mx.array(value))

    return tree_map(copied, getattr(leaf, "stored", leaf.cache))


def span_of(states: Iterable[Any]) -> int:
    """Return the tokens after which each of these states has grown; 0: none does."""
    return max((getattr(leaf, "ratio", 0) for leaf in states), default=0)
