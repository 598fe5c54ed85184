"""Images as towers read them equal those of the processors of transformers, tiles included."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from PIL import Image
from transformers import AutoImageProcessor, LlavaNextProcessor

from omlx.errors import BadRequest
from omlx.models.catalog.tokenizer import read_tokenizer
from omlx.models.vision.support import open_family
from tests.lanes import few
from tests.models.trees import inspected
from tests.models.vision.folders import CONFIGS, save_vlm
from tests.models.vision.loaded import SIZES, picture
from tests.refusals import refused

pytestmark = [
    pytest.mark.needs_extra,
    pytest.mark.filterwarnings("ignore:.rope_scaling. is deprecated:FutureWarning"),
]
FAMILIES = (
    "qwen2_5_vl",
    "qwen3_vl",
    "smolvlm",
    "gemma3",
    "gemma4",
    "mistral3",
    "llava",
    "llava_next",
    "internvl",
)
FEW = {(1, 1), (37, 91)}
OFTEN = [pytest.param(size, id=f"{size[0]}x{size[1]}") for size in SIZES if size in FEW]
RARELY = [
    pytest.param(size, id=f"{size[0]}x{size[1]}", marks=pytest.mark.slow)
    for size in SIZES
    if size not in FEW
]
PLAIN: dict[str, dict[str, Any]] = {
    "smolvlm": {"return_row_col_info": True},
    "mistral3": {"patch_size": 8},
    "internvl": {"crop_to_patches": True},
}
"""What the processor of a family gives its image processor."""


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made: dict[str, Any] = {}

    def make(family: str) -> tuple[Any, Path]:
        if family not in made:
            folder = tmp_path_factory.mktemp("families") / family
            save_vlm(family, folder)
            model = inspected(folder)
            made[family] = open_family(model.files, read_tokenizer(model)), folder
        return made[family]

    return make


@pytest.mark.parametrize("size", [*OFTEN, *RARELY])
@pytest.mark.parametrize("family", FAMILIES)
def test_arrays_are_bit_equal(families: Any, family: str, size: tuple[int, int]) -> None:
    eye, folder = families(family)
    processor: Any = AutoImageProcessor.from_pretrained(str(folder), backend="pil")
    image = picture(*size)
    wanted = processor(images=[image], return_tensors="np", **PLAIN.get(family, {}))
    prepared = eye.patches(image, "name")
    assert prepared.arrays.keys() == wanted.keys()
    for name, array in wanted.items():
        assert np.array_equal(prepared.arrays[name], array), name
    assert prepared.features > 0
    assert prepared.patches > 0


@pytest.mark.parametrize("size", [*OFTEN, *RARELY])
def test_tiles_of_the_authors_of_internvl(families: Any, size: tuple[int, int]) -> None:
    """Their layout has no settings of an image processor: mlx-vlm's is the reference."""
    module = import_module("mlx_vlm.models.internvl_chat.processor")
    image = picture(*size)
    wanted = module.InternVLImageProcessor(size=32, dynamic_max_num=4).preprocess([image])
    tiles = families("internvl_chat")[0].patches(image, "name").arrays["pixel_values"]
    assert np.allclose(tiles, np.array(wanted["pixel_values"][0]), atol=1e-5)


@pytest.mark.parametrize(
    "family",
    few(CONFIGS, "qwen2_vl", "smolvlm", "pixtral", "llava_next", "ernie4_5_moe_vl", "qwen4_exp"),
)
def test_fewer_tokens_where_they_are_bounded(families: Any, family: str) -> None:
    eye, _ = families(family)
    image = picture(640, 480)
    whole, least = eye.patches(image, "name"), eye.patches(image, "name", 16)
    assert least.features <= whole.features
    if family.startswith(("qwen", "pixtral", "mistral")):
        assert least.features <= 16 < whole.features
    assert eye.image_name(b"file") != eye.image_name(b"file", 16) != eye.image_name(b"other", 16)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_shapes_that_a_family_refuses_are_bad_requests(families: Any, family: str) -> None:
    eye, _ = families(family)
    for size in ((1, 300), (300, 1)):
        with refused(BadRequest, "image.shape"):
            eye.patches(picture(*size), "name")


@pytest.mark.parametrize("family", CONFIGS)
def test_images_of_one_colour_have_all_their_features(families: Any, family: str) -> None:
    eye, _ = families(family)
    gray = Image.new("RGB", (64, 48), (127, 127, 127))
    assert eye.patches(gray, "name").features == eye.patches(picture(64, 48), "name").features


def test_names_depend_on_the_preprocessing(families: Any) -> None:
    names = {families(family)[0].image_name(b"file") for family in FAMILIES if family != "qwen3_vl"}
    assert len(names) == len(FAMILIES) - 1


NEWLINE = -9.0


@pytest.fixture(scope="module")
def eye(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("next")
    save_vlm("llava_next", folder)
    return open_family(inspected(folder).files, read_tokenizer(inspected(folder)))


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
