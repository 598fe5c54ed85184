"""Rollback of a KV cache, layer by layer.

A layer that can step back (move a counter, slice rows) does. If any layer cannot, every layer
returns to the newest mark at or below the target, and the tokens in between are read again with the
next window: there is no replay pass.

| cache                    | rolls back by                                                       |
|--------------------------|---------------------------------------------------------------------|
| KVCache QuantizedKVCache | trim: only a counter moves                                          |
| Trimmed                  | trim                                                                |
| ChunkedKVCache           | trim, while the target's chunk is still complete; else a fresh mark |
| ConcatenateKVCache       | slice: its own trim leaves the rows in place                        |
| RotatingKVCache          | slice, while no row of the window is overwritten; else a mark       |
| Recorded                 | its record of the newest pass; else a mark                          |
| ArraysCache              | a mark                                                              |
| CacheList                | its parts                                                           |
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    RotatingKVCache,
)

from omlx.engine.device.model import (
    ATTENTION,
    LayerCache,
    Recorded,
    Trimmed,
    architecture_of,
    cache_kind,
    handle,
)
from omlx.engine.types import Traits
from omlx.errors import Reason, RewindError

_INCONSISTENT = frozenset({"mlx_lm.models.plamo3"})
"""Models, by module, whose passes over several tokens differ from single steps past their window.
"""

_COUNTING = ATTENTION | {ChunkedKVCache, ConcatenateKVCache, Trimmed}
"""Kinds with a count of tokens, `offset`."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The state of a cache before a pass. `saved[i]` is of leaf i; None where a trim suffices."""

    length: int
    saved: tuple[tuple[Any, ...] | None, ...]


def leaves(cache: Iterable[LayerCache]) -> list[LayerCache]:
    """Return the layer caches, every CacheList replaced by its parts."""
    flat: list[LayerCache] = []
    for layer in cache:
        if cache_kind(type(layer)) is CacheList:
            flat.extend(leaves(cast(Any, layer).caches))
        else:
            flat.append(layer)
    return flat


def unsupported(cache: Iterable[LayerCache]) -> list[str]:
    """Return the names of the cache classes that cannot be rolled back here."""
    return sorted({type(leaf).__name__ for leaf in leaves(cache) if cache_kind(type(leaf)) is None})


def rewind_refusal(cache: Iterable[LayerCache], model: object = None) -> Reason | None:
    """Return why a model cannot verify drafts, or None.

    Its cache cannot be rolled back, or its passes over several tokens disagree with single steps.
    """
    if layers := unsupported(cache):
        return Reason("spec.off.cache", {"layers": ", ".join(layers)})
    if (module := architecture_of(model)) in _INCONSISTENT:
        return Reason("spec.off.inconsistent", {"model": module.rpartition(".")[2]})
    return None


def traits(cache: Iterable[LayerCache]) -> Traits:
    parts = leaves(cache)
    windows = [leaf.max_size for leaf in parts if isinstance(leaf, RotatingKVCache)]
    windows += [leaf.chunk_size for leaf in parts if isinstance(leaf, ChunkedKVCache)]
    marked = [leaf for leaf in parts if cache_kind(type(leaf)) is ArraysCache]
    recorded = bool(marked) and all(isinstance(leaf, Recorded) for leaf in marked)
    return Traits(
        recurrent=bool(marked),
        sliding_window=min(windows, default=None),
        unsupported=tuple(unsupported(parts)),
        recorded=Recorded.LONGEST if recorded else 0,
    )


def mark(cache: Iterable[LayerCache], length: int, *, fresh: bool = False) -> Mark:
    """Return a mark of `cache` at `length` tokens. Copies nothing; does not modify the cache.

    `fresh` takes new handles of chunked rows. It is needed if the next pass writes them in place
    (one token); that write then copies the buffer once.
    """
    return Mark(length, tuple(_save(leaf, fresh) for leaf in leaves(cache)))


def rewind(cache: Iterable[LayerCache], now: int, target: int, marks: Sequence[Mark] = ()) -> int:
    """Roll `cache` back from `now` to `target` tokens, or to the newest mark below, in place.

    Return the length reached. Raises RewindError, with the cache unchanged, if neither is possible.
    """
    parts, back = leaves(cache), now - target
    if not back:
        return now
    stuck = [leaf for leaf in parts if not _can_step_back(leaf, back)]
    if not stuck:
        for leaf in parts:
            _step_back(leaf, back)
        return target
    for place in reversed(marks):
        if place.length <= target:
            for leaf, saved in zip(parts, place.saved, strict=True):
                _put_back(leaf, saved, now - place.length)
            return place.length
    names = sorted({type(leaf).__name__ for leaf in stuck})
    detail = f"{', '.join(names)} cannot step back {back}"
    raise RewindError("rewind.failed", length=target, detail=detail)


def length_of(cache: Iterable[LayerCache]) -> int | None:
    """Return how many tokens the layers count; None if none counts. Asserts that they agree."""
    counts = {
        int(cast(Any, leaf).offset) for leaf in leaves(cache) if cache_kind(type(leaf)) in _COUNTING
    }
    assert len(counts) <= 1, f"layers disagree: {sorted(counts)}"
    return counts.pop() if counts else None


def _can_step_back(leaf: Any, n: int) -> bool:
    if isinstance(leaf, Recorded):
        return leaf.records(n)
    kind = cache_kind(type(leaf))
    if kind is RotatingKVCache:
        if leaf.keys is None:
            return False
        if leaf._idx == leaf.keys.shape[2]:
            return bool(leaf.keys.shape[2] - n >= min(leaf.offset - n, leaf.max_size))
        return bool(leaf._idx == leaf.offset)
    if kind is ChunkedKVCache:
        return bool(leaf.start_position <= (leaf.offset - n) // leaf.chunk_size * leaf.chunk_size)
    return kind in _COUNTING and n <= leaf.offset


def _step_back(leaf: Any, n: int) -> None:
    if isinstance(leaf, Recorded):
        leaf.step_back(n)
        return
    kind = cache_kind(type(leaf))
    if kind is ConcatenateKVCache:
        leaf.keys, leaf.values = leaf.keys[..., :-n, :], leaf.values[..., :-n, :]
        leaf.offset -= n
    elif kind is RotatingKVCache:
        if leaf._idx == leaf.keys.shape[2]:
            leaf.keys, leaf.values = leaf.keys[..., :-n, :], leaf.values[..., :-n, :]
        leaf.offset -= n
        leaf._idx -= n
    elif leaf.trim(n) != n:
        raise RewindError(
            "rewind.failed", length=-1, detail=f"{type(leaf).__name__} trimmed fewer than {n}"
        )


def _save(leaf: Any, fresh: bool) -> tuple[Any, ...] | None:
    kind = cache_kind(type(leaf))
    if kind is ArraysCache:
        # advance() changes lengths and left_padding in place: they need handles of their own.
        return (list(leaf.cache), handle(leaf.left_padding), handle(leaf.lengths))
    if kind is RotatingKVCache:
        # Some layers read a window token by token, and each token in place.
        return (handle(leaf.keys), handle(leaf.values), leaf.offset, leaf._idx)
    if kind is ChunkedKVCache and fresh:
        return (handle(leaf.keys), handle(leaf.values), leaf.offset, leaf.start_position)
    return None


def _put_back(leaf: Any, saved: tuple[Any, ...] | None, n: int) -> None:
    kind = cache_kind(type(leaf))
    if kind is ArraysCache and saved is not None:
        states, left_padding, lengths = saved
        if isinstance(leaf, Recorded):
            leaf.begin(0)
        leaf.cache = list(states)
        leaf.left_padding, leaf.lengths = handle(left_padding), handle(lengths)
    elif kind is RotatingKVCache and saved is not None:
        leaf.keys, leaf.values, leaf.offset, leaf._idx = saved
    elif kind is ChunkedKVCache and saved is not None:
        leaf.keys, leaf.values, leaf.offset, leaf.start_position = saved
    else:
        _step_back(leaf, n)
