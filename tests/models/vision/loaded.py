"""Tiny vision-language models, loaded as a server loads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import numpy as np
from PIL import Image

from omlx.engine.step.plan import Look
from omlx.engine.types import run_through
from omlx.engine.vision.reader import Features, Vision
from omlx.engine.vision.spans import PreparedImage
from omlx.models.pool.load_weights import LoadedModel, LoadOptions, load_steps
from tests.models.trees import inspected

SIZES: Final = (
    *((1, 1), (1, 40), (40, 1), (3, 2), (28, 28), (29, 27), (31, 64)),
    *((37, 91), (64, 64), (65, 63), (100, 30), (30, 100), (128, 96), (96, 128)),
    *((200, 17), (17, 200), (255, 257), (256, 256), (300, 500), (640, 480)),
)
"""Widths and heights, one pixel and long shapes among them."""


def load_with_vision(folder: Path, *, vision: bool = True, library: str = "auto") -> LoadedModel:
    options = LoadOptions(vision=vision, library=library)
    return run_through(load_steps(inspected(folder), "float32", options))


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).random((height, width, 3)) * 255
    return Image.fromarray(pixels.astype(np.uint8))


def features_of(vision: Vision, image: PreparedImage, stride: int = 1) -> Features:
    """What the tower computes, `stride` steps at a time."""
    seer, steps = vision.sibling(), vision.tower.facts.steps
    for start in range(0, steps, stride):
        seer.look(Look(1, image.name, start, min(steps, start + stride)), image)
    return seer._features[image.name]


def difference(one: Any, other: Any) -> float:
    """The largest difference of two arrays, relative to the largest value."""
    gap: float = (mx.abs(one - other).max() / mx.abs(other).max()).item()
    return gap
