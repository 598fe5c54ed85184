"""A layer's KV cache as one pass with images sees it, and the layers that look for it.

mlx-lm's layers ask their cache where they stand (`offset`), what they may attend to (`make_mask`)
and where rows go (`update_and_fetch`). A view answers the first two and leaves the cache as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import mlx.core as mx
import mlx.nn as nn


@dataclass(frozen=True, slots=True)
class Axes:
    """Positions [3, tokens] on the axes time, row, column, in the place of an offset."""

    positions: mx.array


Shift: TypeAlias = Axes | mx.array | int
"""Positions of a pass, or what they are ahead of the cache's offset: a number, or one a row."""


class View:
    """The cache of one layer in one pass.

    Tokens of each span [first, last) of `open_spans` attend to all of it that a sliding window
    leaves. `marks` [1, tokens, D] are added behind the first layers.
    """

    def __init__(
        self,
        cache: Any,
        shift: Shift,
        open_spans: Sequence[tuple[int, int]] = (),
        marks: Sequence[mx.array] = (),
    ) -> None:
        self._cache = cache
        self._shift = shift
        self._open_spans = open_spans
        self.marks = marks

    @property
    def offset(self) -> Any:
        if isinstance(self._shift, Axes):
            return self._shift
        return self._cache.offset + self._shift

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        return self._cache.update_and_fetch(keys, values)

    def make_mask(self, tokens: int, *args: Any, **kwargs: Any) -> Any:
        """Return the cache's own mask [tokens, keys], with the spans opened."""
        if not self._open_spans:
            return self._cache.make_mask(tokens, *args, **kwargs)
        mask = self._cache.make_mask(tokens, *args, **{**kwargs, "return_array": True})
        rows, span = mx.arange(tokens), mx.full((tokens,), -1)
        for i, (first, last) in enumerate(self._open_spans):
            span = mx.where((rows >= first) & (rows < last), i, span)
        same = (span[:, None] == span[None]) & (span[:, None] >= 0)
        window = getattr(self._cache, "max_size", None)
        if window is not None:  # a sliding window ends within an image too
            same &= rows[None] > rows[:, None] - window
        return mask | mx.pad(same, [(0, 0), (mask.shape[-1] - tokens, 0)])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)


class AxialRope(nn.Module):
    """Rotary embedding that also takes `Axes`; offsets go to the layer's own.

    `sections` are the frequencies of each axis, side by side or interleaved. Source: M-RoPE, arXiv
    2409.12191; interleaved, arXiv 2511.21631.
    """

    def __init__(self, plain: Any, sections: Sequence[int], *, interleaved: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # mlx has no type for it
        self.plain = plain
        axis = [i for i, width in enumerate(sections) for _ in range(width)]
        if interleaved:
            axis = [0] * (plain.dims // 2)
            for i in (1, 2):
                axis[i : 3 * sections[i] : 3] = [i] * len(axis[i : 3 * sections[i] : 3])
        self._axis = mx.array(axis)
        exponents = mx.arange(0, plain.dims, 2, dtype=mx.float32) / plain.dims
        self._frequencies = plain.base**-exponents
        mx.eval(
            self._frequencies
        )  # not within a pass: one that fails would leave it wrong for good

    def __call__(self, x: mx.array, offset: Any = 0) -> mx.array:
        """x [rows, heads, tokens, head_dim]"""
        if not isinstance(offset, Axes):
            rotated: mx.array = self["plain"](x, offset=offset)  # an attribute takes 1 µs longer
            return rotated
        angles = offset.positions[self._axis].T.astype(mx.float32) * self._frequencies
        cos, sin, dims = mx.cos(angles), mx.sin(angles), self.plain.dims
        a, b = mx.split(x[..., :dims].astype(mx.float32), 2, axis=-1)
        turned = mx.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)
        if dims == x.shape[-1]:
            return turned
        return mx.concatenate([turned, x[..., dims:]], axis=-1)


class MarkedLayer(nn.Module):
    """One of the first layers, behind which features of images are added (DeepStack, arXiv
    2406.04334)."""

    def __init__(self, layer: nn.Module, index: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # mlx has no type for it
        self.layer = layer
        self._index = index

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        hidden: mx.array = self["layer"](x, mask, cache)
        marks = cache.marks if isinstance(cache, View) else ()
        return hidden + marks[self._index] if marks else hidden
