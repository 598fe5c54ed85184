"""Passes with images: a text model of mlx-lm learns of them through its KV caches.

    ids ─► embeddings, image features in their places ─► layers, each with a view of its cache

mlx-lm's layers ask their cache for their position (`offset`), for what they attend to (`make_mask`)
and where rows go (`update_and_fetch`). A view answers the first two and leaves the cache as it is.
A pass without images, of a row without images, gets the caches themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal, Protocol, TypeAlias

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import ArraysCache, RotatingKVCache

from omlx.engine.device.model import Cache, Caller, Model
from omlx.engine.step.plan import Forget, Look
from omlx.engine.vision.spans import (
    ImageSpan,
    PreparedImage,
    TowerFacts,
    position_shift,
    positions,
    spans_within,
)


@dataclass(frozen=True, slots=True)
class Axes:
    """Positions [3, tokens] on the axes time, row, column, in the place of an offset."""

    positions: mx.array


Shift: TypeAlias = Axes | mx.array | int
"""Positions of a pass, or what they are ahead of the cache's offset: a number, or one a row."""


@dataclass(eq=False)
class View:
    """The cache of one layer in one pass.

    Tokens of each span [first, last) of `_open_spans` attend to all of it that a sliding window
    leaves. `marks` [1, tokens, D] are added behind the first layers.
    """

    _cache: Any
    _shift: Shift
    _open_spans: Sequence[tuple[int, int]] = ()
    marks: Sequence[mx.array] = ()

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
    """Rotary embedding for offsets and `Axes`; the layer's own turns offsets.

    Source: M-RoPE, arXiv 2409.12191; interleaved, arXiv 2511.21631.
    """

    def __init__(self, plain: Any, rotary: Rotary) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # mlx has no type for it
        self.plain = plain
        axis = [i for i, width in enumerate(rotary.sections) for _ in range(width)]
        if rotary.interleaved:
            axis = [0] * (plain.dims // 2)
            for i in (1, 2):
                places = slice(i, 3 * rotary.sections[i], 3)
                axis[places] = [i] * len(axis[places])
        self._axis = mx.array(axis)
        exponents = mx.arange(0, plain.dims, 2, dtype=mx.float32) / plain.dims
        self._frequencies = plain.base**-exponents
        # Not within a pass: one that fails would leave it wrong for good.
        mx.eval(self._frequencies)

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


def _marked(index: int, layer: Any, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
    """Add features of images behind one of the first layers (DeepStack, arXiv 2406.04334)."""
    hidden: mx.array = layer(x, mask, cache)
    marks = cache.marks if isinstance(cache, View) else ()
    return hidden + marks[index] if marks else hidden


END: Final = 1 << 62
"""A position behind every token."""


@dataclass(frozen=True, slots=True)
class Features:
    """Features of an image: `rows` [features, D], like embeddings before they are scaled.

    `marks` [features, D] are added behind the text model's first layers.
    """

    rows: mx.array
    marks: tuple[mx.array, ...] = ()


Looking: TypeAlias = Generator[mx.array, None, Features]
"""A tower at work: yields an array to evaluate after each step but the last; returns features."""


class Tower(Protocol):
    """A vision tower with its projector."""

    @property
    def facts(self) -> TowerFacts: ...

    def look(self, image: PreparedImage) -> Looking:
        """Compute the features of one image, lazily. Yields `facts.steps - 1` times."""
        ...


@dataclass(frozen=True, slots=True)
class Rotary:
    """Positions on three axes: frequencies of each, side by side or interleaved."""

    sections: tuple[int, ...]
    interleaved: bool


@dataclass(frozen=True, slots=True)
class Seeing:
    """Reading of features by the text models of one family.

    `blank` is the id that stands for an image token where the model asks for ids. The model
    multiplies embeddings by `scale` itself. Within an image attention is open in both directions on
    `open_layers`. `marks` counts the layers behind which features are added. `embed` names the
    embedding of ids. `arguments` of the model, in place of views, follow from positions [3, 1,
    tokens] and the places of images [1, tokens]; with `shifts` in passes over images alone.
    """

    blank: int
    scale: float = 1.0
    open_layers: Literal["none", "all", "sliding"] = "none"
    rotary: Rotary | None = None
    marks: int = 0
    embed: str = "embed_tokens"
    arguments: Callable[[mx.array, mx.array], Mapping[str, mx.array]] | None = None
    shifts: bool = False


@dataclass(slots=True)
class Vision:
    """Vision of a model: tower, features, and the text model's passes over images.

    Exchanges rotary embeddings and first layers of the loaded `model`, which computes the same as
    before where no image is shown. `body` is the part with embeddings and layers.
    """

    model: Model
    body: Any
    seeing: Seeing
    tower: Tower
    _features: dict[str, Features] = field(default_factory=dict)
    _looking: dict[str, Looking] = field(default_factory=dict)

    def __post_init__(self) -> None:
        layers = self.body.layers
        for i, layer in enumerate(layers):
            if self.seeing.rotary is not None and "self_attn" in layer:
                attention = layer.self_attn
                if not isinstance(attention.rope, AxialRope):
                    attention.rope = AxialRope(attention.rope, self.seeing.rotary)
            if i < self.seeing.marks and not isinstance(layer, Caller):
                layers[i] = Caller(layer, partial(_marked, i))

    def look(self, op: Look, image: PreparedImage | None) -> mx.array:
        """Dispatch steps of the tower. Return an array that is computed when they are."""
        if op.start == 0:
            assert image is not None, op
            self._looking[op.image] = self.tower.look(image)
        looking, step = self._looking.pop(op.image), mx.array(0)
        try:
            for _ in range(op.start, op.stop):
                step = next(looking)
        except StopIteration as finished:
            features: Features = finished.value
            self._features[op.image] = features
            mx.async_eval(features.rows, *features.marks)
            return features.rows
        self._looking[op.image] = looking
        mx.async_eval(step)
        return step

    def forget(self, op: Forget) -> None:
        for name in op.images:
            self._features.pop(name, None)
            self._looking.pop(name, None)

    def sibling(self) -> Vision:
        return Vision(self.model, self.body, self.seeing, self.tower)

    def ids(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """Return ids that the model can embed: its blank for those of images."""
        return tuple([token if token >= 0 else self.seeing.blank for token in tokens])

    def read(self, ids: mx.array, cache: Cache, start: int, spans: Sequence[ImageSpan]) -> mx.array:
        """Return logits [1, tokens, V] of a row's window `ids` [tokens] that begins at `start`."""
        stop = start + ids.shape[0]
        shown, shift = spans_within(spans, start, stop), self._shift(spans, start, stop)
        if not shown and isinstance(shift, int) and not shift:
            return self.model(ids[None], cache=cache)
        more: dict[str, mx.array] = {}
        marks: list[mx.array] = []
        places: list[tuple[int, int]] = []
        if shown:
            more["input_embeddings"], marks, places = self._embed(ids, start, shown)
        if self.seeing.arguments is not None and (shown or not self.seeing.shifts):
            more |= self._arguments(shift, start, stop, places)
            shift = 0
        model: Any = self.model
        logits: mx.array = model(ids[None], cache=self._views(cache, shift, places, marks), **more)
        return logits

    def _embed(
        self, ids: mx.array, start: int, shown: Sequence[ImageSpan]
    ) -> tuple[mx.array, list[mx.array], list[tuple[int, int]]]:
        """Return embeddings and marks [1, tokens, D] of a window, and the places of images."""
        stop = start + ids.shape[0]
        rows = getattr(self.body, self.seeing.embed)(ids)  # [tokens, D]
        marks = [mx.zeros_like(rows) for _ in range(self.seeing.marks)]
        places: list[tuple[int, int]] = []
        for span in shown:
            first, last = max(span.start, start), min(span.stop, stop)
            part = slice(span.at + first - span.start, span.at + last - span.start)
            place, features = slice(first - start, last - start), self._features[span.image]
            rows[place] = (features.rows[part] / self.seeing.scale).astype(rows.dtype)
            for mark, added in zip(marks, features.marks, strict=True):
                mark[place] = added[part].astype(rows.dtype)
            places.append((first - start, last - start))
        return rows[None], [mark[None] for mark in marks], places

    def batch(self, cache: list[Any], spans: Sequence[Sequence[ImageSpan]]) -> list[Any]:
        """Return the cache of a batch whose rows stand behind the images of `spans`, by row."""
        if self.seeing.rotary is None and not self.seeing.shifts:
            assert self.seeing.arguments is None, "rows of such a model share no pass"
            return cache
        shifts = [position_shift(row, END) for row in spans]
        return self._views(cache, mx.array(shifts)) if any(shifts) else cache

    def _shift(self, spans: Sequence[ImageSpan], start: int, stop: int) -> Shift:
        if self.seeing.rotary is None and self.seeing.arguments is None:
            return 0
        axes = positions(spans, start, stop)
        return position_shift(spans, start) if axes is None else Axes(mx.array(axes))

    def _arguments(
        self, shift: Shift, start: int, stop: int, places: Sequence[tuple[int, int]]
    ) -> Mapping[str, mx.array]:
        """Return the model's further arguments for tokens [start, stop)."""
        assert self.seeing.arguments is not None
        axes = shift.positions if isinstance(shift, Axes) else mx.arange(start, stop) + shift
        shown = mx.zeros((1, stop - start), mx.bool_)
        for first, last in places:
            shown[:, first:last] = True
        axes = mx.broadcast_to(axes, (3, stop - start))[:, None]
        return self.seeing.arguments(axes, shown)

    def _views(
        self,
        cache: Sequence[Any],
        shift: Shift,
        places: Sequence[tuple[int, int]] = (),
        marks: Sequence[mx.array] = (),
    ) -> list[Any]:
        views: list[Any] = []
        still = isinstance(shift, int) and not shift
        if still and self.seeing.open_layers == "none" and not marks:
            return list(cache)  # a view would answer the same
        for layer in cache:
            if isinstance(layer, ArraysCache):  # recurrences know neither positions nor masks
                views.append(layer)
                continue
            opens = self.seeing.open_layers == "all" or (
                self.seeing.open_layers == "sliding" and isinstance(layer, RotatingKVCache)
            )
            views.append(View(layer, shift, places if opens else (), marks))
        return views
