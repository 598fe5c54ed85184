"""Attention within an image, against the whole sequence in one pass without KV caches.

Gemma 3 and 4 let tokens of one image attend to each other in both directions: Gemma 3 on all
layers, Gemma 4 on the sliding ones. A sliding layer looks back no further than its window, within
an image too. Source: `create_masks_for_vision_model` in transformers' models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import pytest

from omlx.engine.step.plan import Look
from omlx.engine.types import Request
from omlx.engine.vision.reader import Vision
from omlx.engine.vision.spans import ImageSpan, PreparedImage
from tests import zoo
from tests.engine.harness import GREEDY
from tests.engine.vision.sighted import DOG, body_of, image, shown, sighted

LARGE = image("large", 5, 8)
"""More tokens than a sliding window has."""


@dataclass
class NoCache:
    """Stands for the KV cache of a layer that sees the whole sequence in one pass."""

    mask: mx.array
    offset: int = 0

    def make_mask(self, tokens: int, **kwargs: Any) -> mx.array:
        return self.mask

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        return keys, values


def windows(vision: Vision) -> list[int | None]:
    """The sliding window of each layer; None: the layer sees all."""
    return [getattr(cache, "max_size", None) for cache in zoo.make_cache(vision.model)]


def masks(vision: Vision, request: Request, opens: Callable[[int | None], bool]) -> list[mx.array]:
    """The mask [tokens, tokens] of each layer; `opens`: layers of a window open images."""
    shown_by = [_image_at(request.spans, i) for i in range(len(request.tokens))]

    def sees(i: int, j: int, window: int | None) -> bool:
        within = shown_by[i] is not None and shown_by[i] == shown_by[j] and opens(window)
        return (j <= i or within) and (window is None or j > i - window)

    size = range(len(request.tokens))
    made = {
        window: mx.array([[sees(i, j, window) for j in size] for i in size])
        for window in set(windows(vision))
    }
    return [made[window] for window in windows(vision)]


def _image_at(spans: tuple[ImageSpan, ...], at: int) -> int | None:
    return next((n for n, span in enumerate(spans) if span.start <= at < span.stop), None)


def looking(vision: Vision, images: tuple[PreparedImage, ...]) -> Vision:
    seer = vision.sibling()
    for each in images:
        seer.look(Look(0, each.name, 0, vision.tower.facts.steps), each)
    return seer


def whole(seer: Vision, request: Request, layer_masks: list[mx.array]) -> mx.array:
    """Logits [tokens, V] of the sequence in one pass."""
    ids = mx.array(seer.ids(request.tokens))
    rows = body_of(seer.model).embed_tokens(ids)
    for span in request.spans:
        rows[span.start : span.stop] = seer._features[span.image].rows
    model: Any = seer.model
    caches = [NoCache(mask) for mask in layer_masks]
    logits: mx.array = model(ids[None], cache=caches, input_embeddings=rows[None])
    return logits[0]


def in_chunks(seer: Vision, request: Request) -> mx.array:
    """Logits [tokens, V] in passes that end before and behind each image."""
    cache, logits = zoo.make_cache(seer.model), []
    cuts = {0, len(request.tokens), *(at for s in request.spans for at in (s.start, s.stop))}
    for start, stop in zip(sorted(cuts), sorted(cuts)[1:], strict=False):
        ids = mx.array(seer.ids(request.tokens[start:stop]))
        logits.append(seer.read(ids, cache, start, request.spans)[0])
    return mx.concatenate(logits)


@pytest.mark.parametrize("images", [(DOG, DOG), (LARGE, DOG)], ids=["small", "large"])
@pytest.mark.parametrize(
    ("name", "opens"),
    [("gemma3", lambda window: True), ("gemma4", lambda window: window is not None)],
    ids=["gemma3", "gemma4"],
)
def test_an_image_is_seen_as_published(
    name: str, opens: Callable[[int | None], bool], images: tuple[PreparedImage, ...]
) -> None:
    vision = sighted(name)
    assert {None} < set(windows(vision))
    request = shown(name, images, GREEDY)
    seer = looking(vision, images)
    wanted = whole(seer, request, masks(vision, request, opens))
    ids = mx.array(seer.ids(request.tokens))
    at_once = seer.read(ids, zoo.make_cache(vision.model), 0, request.spans)[0]
    for logits in (at_once, in_chunks(seer, request)):
        assert mx.allclose(logits, wanted, rtol=1e-4, atol=1e-4).item()
    for other in (lambda window: False, lambda window: window is None):  # else it proves nothing
        differs = whole(seer, request, masks(vision, request, other))
        assert mx.abs(differs - wanted).max().item() > 1e-2
