"""Image families whose text models are mlx-vlm's, which take embeddings and positions as arguments.

Processors are mlx-vlm's, with the settings that its own loader gives them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from copy import copy
from importlib import import_module
from math import ceil
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from PIL import Image

from omlx.engine.vision.reader import Features, Seeing
from omlx.models.library.borrow import module_of
from omlx.models.vision.family import Arrays, VisionFamily, single
from omlx.models.vision.whole_images import Qwen2Family, Qwen35Family


def _processing(model_type: str, module: str) -> Any:
    """Import a processor's module of mlx-vlm, behind the package that it belongs to."""
    return import_module(f"{module_of({'model_type': model_type}).__name__}.{module}")


class MimoFamily(Qwen2Family):
    """Features with the positions of text."""

    def grid(self, arrays: Arrays) -> None:
        return None

    def spec(self, model: Any) -> Seeing:
        return Seeing(self.token_id)


class Glm5NextFamily(MimoFamily):
    token = "<|image|>"

    def _read_processor(self, directory: Path) -> Any:
        file = directory / "processor_config.json"
        settings = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        processor = _processing("glm5_next", "processing").Glm5NextImageProcessor
        return processor(**settings.get("image_processor", {}))

    def options(self, most: int) -> dict[str, Any]:
        return {"max_image_tokens": min(most, self.processor.max_image_tokens)}


class Qwen4Family(Qwen35Family):
    def spec(self, model: Any) -> Seeing:
        return Seeing(self.token_id, arguments=lambda places, shown: {"position_ids": places})


class ErnieFamily(Qwen2Family):
    """Features are read by experts of their own."""

    token = "<|IMAGE_PLACEHOLDER|>"
    marker = "<|image@placeholder|>"

    def _read_processor(self, directory: Path) -> Any:
        processor = _processing("ernie4_5_moe_vl", "processing_ernie4_5_moe_vl").ImageProcessor
        size, merge = self.vision.get("patch_size", 14), self.vision.get("spatial_merge_size", 2)
        return processor(patch_size=size, merge_size=merge)

    def arrays(self, image: Image.Image, most: int) -> dict[str, Any]:
        processor = copy(self.processor)
        processor.max_pixels = min(processor.max_pixels, most * processor.factor**2)
        return dict(processor.preprocess([image]))

    def spec(self, model: Any) -> Seeing:
        return Seeing(self.token_id, arguments=_kinds, shifts=True)

    def features(self, vlm: Any, arrays: Arrays) -> Features:
        grid = arrays["image_grid_thw"]
        return single(vlm.resampler_model(vlm.vision_tower(arrays["pixel_values"], grid), grid))


def _kinds(positions: mx.array, shown: mx.array) -> Mapping[str, mx.array]:
    return {"position_ids": positions.transpose(1, 2, 0), "token_type_ids": shown.astype(mx.int32)}


class InklingFamily(VisionFamily):
    """Squares of 40 pixels, each a feature; rows end with an additional one."""

    token = "<|unused_200054|>"

    def _read_processor(self, directory: Path) -> Any:
        return _processing("inkling", "processing_inkling").InklingImageProcessor()

    def arrays(self, image: Image.Image, most: int) -> dict[str, Any]:
        size = int(self.processor.patch_size)
        image = _shrunk(image, most, lambda wide, high: (wide // size + 1) * ceil(high / size))
        return {"pixel_values": np.array(self.processor.preprocess([image])["pixel_values"])}

    def patch_count(self, arrays: Arrays) -> int:
        return int(arrays["pixel_values"].shape[0])

    def expansion(self, arrays: Arrays) -> str:
        return self.token * self.patch_count(arrays)

    def spec(self, model: Any) -> Seeing:
        return Seeing(self.token_id, embed="embed")

    def features(self, vlm: Any, arrays: Arrays) -> Features:
        return single(vlm.vision_tower(arrays["pixel_values"]))


class Step3Family(VisionFamily):
    """Tiles of a squared image, then all of it; some rows of tiles end with a newline token."""

    token = "<im_patch>"

    def _read_processor(self, directory: Path) -> Any:
        processor = _processing("step3p7", "processing_step3p7").Step3VLProcessor
        return processor(self.tokenizer._tokenizer)

    def settings(self) -> Mapping[str, Any]:
        return {}

    def arrays(self, image: Image.Image, most: int) -> dict[str, Any]:
        tile, whole = self.processor.num_patch_feature_size, self.processor.num_image_feature_size
        tiles = self.processor.patcher.get_num_patches
        image = _shrunk(image, max(most, whole), lambda *size: int(tiles(*size)[0] * tile + whole))
        found = self.processor(self.token, image)
        names = ("pixel_values", "patch_pixel_values")
        arrays = {name: found[name] for name in names if name in found}
        return {**arrays, "ids": found["input_ids"][0].tolist()}

    def expansion(self, arrays: Arrays) -> str:
        return "".join(self.tokenizer.convert_ids_to_tokens(arrays["ids"]))

    def features(self, vlm: Any, arrays: Arrays) -> Features:
        names = ("patch_pixel_values", "pixel_values")
        hidden = [vlm.vision_model(arrays[name]) for name in names if name in arrays]
        parts = [vlm._process_image_features(tiles) for tiles in hidden]
        return Features(mx.concatenate([part.reshape(-1, part.shape[-1]) for part in parts]))


def _shrunk(image: Image.Image, most: int, count: Callable[[int, int], int]) -> Image.Image:
    """Return an image of at most `most` tokens, the `count` of width and height."""
    size, scale = image.size, 1.0
    while count(*size) > most:
        scale *= 0.95
        size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    return image if size == image.size else image.resize(size)
