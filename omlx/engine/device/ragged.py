"""Caches of a batch: one per layer, rows of any length, with rollback by row.

Windows of a pass are padded at their ends to the widest. Attention layers are then rolled back by
the padding; recurrent ones know the widths before the pass, and leave the padding out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, CacheList

from omlx.engine.device.model import ATTENTION, Cache, cache_kind
from omlx.engine.device.ragged_cache import RaggedKVCache
from omlx.engine.device.rewind import leaves
from omlx.errors import RewindError


@dataclass(frozen=True, slots=True)
class BatchMark:
    """Recurrent states before a pass: `states[i]` are those of leaf i, None for other layers.

    `members` are the rows that they belong to, in order.
    """

    members: tuple[int, ...]
    states: tuple[list[mx.array | None] | None, ...]


def merge_caches(caches: Sequence[Cache]) -> list[Any]:
    """Return one batch cache per layer, rows in the order of `caches`, which are not modified."""
    return [_merge_layer(layers) for layers in zip(*caches, strict=True)]


def _merge_layer(layers: Sequence[Any]) -> Any:
    first = layers[0]
    if cache_kind(type(first)) is CacheList:
        parts = zip(*(layer.caches for layer in layers), strict=True)
        return type(first)(*map(_merge_layer, parts))
    if cache_kind(type(first)) in ATTENTION:
        return RaggedKVCache.merge(layers)
    return type(first).merge(list(layers))


def prepare(batch: Sequence[Any], widths: Sequence[int]) -> None:
    """Announce a pass over windows of `widths` tokens, padded to the widest."""
    if min(widths) == max(widths):
        return
    for leaf in leaves(batch):
        if isinstance(leaf, ArraysCache):
            leaf.prepare(lengths=list(widths))


def finalize(batch: Sequence[Any], widths: Sequence[int]) -> None:
    """Remove the padding of a pass that was prepared."""
    widest = max(widths)
    if min(widths) == widest:
        return
    parts: list[Any] = leaves(batch)
    for leaf in parts:
        if isinstance(leaf, ArraysCache):
            leaf.finalize()
        else:
            leaf.trim([widest - width for width in widths])


def mark(batch: Sequence[Any], members: Sequence[int]) -> BatchMark:
    """Return a mark of recurrent states before a pass that may be rolled back. Copies nothing."""
    parts: list[Any] = leaves(batch)
    states: list[list[mx.array | None] | None] = []
    for leaf in parts:
        states.append(list(leaf.cache) if isinstance(leaf, ArraysCache) else None)
    return BatchMark(tuple(members), tuple(states))


def rewind(
    batch: Sequence[Any], members: Sequence[int], row: int, length: int, saved: BatchMark | None
) -> None:
    """Roll back one of the rows `members` to `length` tokens.

    Recurrent layers return to the mark, which must be at that length. Raises RewindError with all
    layers unchanged: they must agree on the lengths of rows, or the others could not be read.
    """
    index = members.index(row)
    parts: list[Any] = leaves(batch)
    for leaf in parts:
        if isinstance(leaf, RaggedKVCache):
            leaf.check_rewind(index, length)
        elif saved is None or row not in saved.members:
            raise RewindError("rewind.failed", length=length, detail="there is no mark")
    for i, leaf in enumerate(parts):
        if isinstance(leaf, RaggedKVCache):
            leaf.rewind(index, length)
            continue
        assert saved is not None
        before = saved.members.index(row)
        for entry, state in enumerate(saved.states[i] or ()):
            if state is not None:
                row_state, starts = state[before][None], mx.array([index])
                leaf[entry] = mx.slice_update(leaf[entry], row_state, starts, axes=(0,))
