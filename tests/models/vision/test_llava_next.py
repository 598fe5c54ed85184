"""LLaVA-NeXT's tiles as one image: how many features, and which of them stands where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from PIL import Image
from transformers import LlavaNextProcessor

from omlx.models.catalog.tokenizer import read_tokenizer
from omlx.models.vision.support import open_family
from tests.models.vision.folders import save_vlm
from tests.models.vision.loaded import SIZES, entry, picture

pytestmark = pytest.mark.needs_extra
NEWLINE = -9.0


@pytest.fixture(scope="module")
def eye(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("next")
    save_vlm("llava_next", folder)
    return open_family(entry(folder).files, read_tokenizer(entry(folder)))


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_as_many_features_as_transformers_counts(eye: Any, size: tuple[int, int]) -> None:
    counter: Any = LlavaNextProcessor.__new__(LlavaNextProcessor)
    counter.image_processor, counter.patch_size = eye.processor, 4
    counter.num_additional_image_tokens = 0
    width, height = size
    wanted = counter._get_number_of_features(height, width, 32, 32)
    assert eye.patches(picture(*size), "name").features == wanted


class MeanColours:
    """In place of a tower: the mean colour [3] of each patch."""

    vision_feature_layer = -1
    image_newline = mx.full((3,), NEWLINE)

    def vision_tower(self, tiles: mx.array, *, output_hidden_states: bool) -> tuple[Any, ...]:
        count, side = tiles.shape[0], tiles.shape[1] // 4
        patches = tiles.reshape(count, side, 4, side, 4, 3).mean(axis=(2, 4))
        hidden = mx.pad(patches.reshape(count, -1, 3), [(0, 0), (1, 0), (0, 0)])
        return hidden, (hidden,)  # with a class token

    def multi_modal_projector(self, hidden: mx.array) -> mx.array:
        return hidden


@pytest.mark.parametrize("size", [(64, 64), (90, 30), (30, 90), (128, 40), (40, 128)], ids=str)
def test_features_follow_the_image_row_by_row(eye: Any, size: tuple[int, int]) -> None:
    width, height = size
    ramps = np.zeros((height, width, 3), np.uint8)
    ramps[..., 0] = np.linspace(0, 255, width)[None]  # red grows to the right, green downwards
    ramps[..., 1] = np.linspace(0, 255, height)[:, None]
    image = eye.patches(Image.fromarray(ramps), "name")
    arrays = {name: mx.array(array) for name, array in image.arrays.items()}
    features = np.array(eye.features(MeanColours(), arrays).rows)
    assert len(features) == image.features
    overview, packed = features[:64].reshape(8, 8, 3), features[64:]
    (ends,) = np.nonzero(packed[:, 0] == NEWLINE)
    columns = ends[0]
    rows = packed.reshape(-1, columns + 1, 3)[:, :-1]
    assert list(ends) == [columns + row * (columns + 1) for row in range(len(rows))]
    for grid in (overview, rows[1:-1, 1:-1]):  # patches at the border may show padding
        assert (np.diff(grid[..., 0], axis=1) > 0).all()
        assert (np.diff(grid[..., 1], axis=0) > 0).all()
