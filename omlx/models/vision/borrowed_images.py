"""Image families whose text models are mlx-vlm's, which take embeddings and positions as arguments.

Processors are mlx-vlm's, with the settings that its own loader gives them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import copy
from importlib import import_module
from math import ceil, isqrt
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from PIL import Image
from transformers.utils.constants import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

from omlx.engine.vision.reader import Features, Seeing
from omlx.models.library.borrow import module_of
from omlx.models.vision.family import Arrays, VisionFamily, shape_errors, single
from omlx.models.vision.support import MAX_TOKENS
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

    def tokens(self, width: int, height: int, most: int = MAX_TOKENS) -> int:
        with shape_errors():
            count = self.processor.get_number_of_image_patches(height, width, self.options(most))
        return int(count) // int(self.processor.merge_size) ** 2


class Qwen4Family(Qwen35Family):
    def spec(self, model: Any) -> Seeing:
        return Seeing(self.token_id, arguments=_positions)


def _positions(positions: mx.array, shown: mx.array) -> Mapping[str, mx.array]:
    return {"position_ids": positions}


class ErnieFamily(Qwen2Family):
    """Features are read by experts of their own."""

    token = "<|IMAGE_PLACEHOLDER|>"

    @property
    def marker(self) -> str:
        return "<|image@placeholder|>"

    def _read_processor(self, directory: Path) -> Any:
        processor = _processing("ernie4_5_moe_vl", "processing_ernie4_5_moe_vl").ImageProcessor
        size, merge = self.vision.get("patch_size", 14), self.vision.get("spatial_merge_size", 2)
        return processor(patch_size=size, merge_size=merge)

    def arrays(self, image: Image.Image, most: int) -> dict[str, Any]:
        return dict(self._bounded(most).preprocess([image]))

    def tokens(self, width: int, height: int, most: int = MAX_TOKENS) -> int:
        with shape_errors():
            _, (rows, columns) = self._bounded(most).get_smart_resize(height, width)
        return int(rows * columns) // int(self.processor.merge_size) ** 2

    def _bounded(self, most: int) -> Any:
        processor = copy(self.processor)
        processor.max_pixels = min(processor.max_pixels, most * processor.factor**2)
        return processor

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
        processor = copy(self.processor)
        processor.rescale_image_frac = self._scale(*image.size, most)
        return {"pixel_values": np.array(processor.preprocess([image])["pixel_values"])}

    def tokens(self, width: int, height: int, most: int = MAX_TOKENS) -> int:
        return self._count(width, height, self._scale(width, height, most))

    def _scale(self, width: int, height: int, most: int) -> float:
        """Return the factor by which an image shrinks to `most` tokens."""
        scale = 1.0
        while self._count(width, height, scale) > most:
            scale *= 0.95
        return scale

    def _count(self, width: int, height: int, scale: float) -> int:
        size = int(self.processor.patch_size)
        columns = int(width * scale + 0.5) // size + 1
        return columns * ceil(int(height * scale + 0.5) / size)

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
    _SIDE = 728
    _TILE_SIDE = 504

    def _read_processor(self, directory: Path) -> Any:
        return _processing("step3p7", "processing_step3p7").ImagePatcher()

    def settings(self) -> Mapping[str, Any]:
        return {"sides": (self._SIDE, self._TILE_SIDE)}

    def arrays(self, image: Image.Image, most: int) -> dict[str, Any]:
        size = self._bounded(*image.size, most)
        whole, tiles, newlines = self.processor(image if size == image.size else image.resize(size))
        arrays = {"pixel_values": _normalised([whole], self._SIDE)}
        if tiles:
            arrays["patch_pixel_values"] = _normalised(tiles, self._TILE_SIDE)
        return {**arrays, "newlines": newlines or []}

    def tokens(self, width: int, height: int, most: int = MAX_TOKENS) -> int:
        return self._count(*self._bounded(width, height, most))

    def _bounded(self, width: int, height: int, most: int) -> tuple[int, int]:
        """Return the size at which an image has at most `most` tokens, or no tiles."""
        scale = 1.0
        size = width, height
        while self._count(*size) > max(most, self._features(self._SIDE)):
            scale *= 0.95
            size = max(1, int(width * scale)), max(1, int(height * scale))
        return size

    def _count(self, width: int, height: int) -> int:
        tiles, _ = self.processor.get_num_patches(width, height)
        return int(tiles) * self._features(self._TILE_SIDE) + self._features(self._SIDE)

    def _features(self, side: int) -> int:
        """Return features of a square with sides of `side` pixels, after two halvings."""
        return ceil(side // int(self.vision.get("patch_size", 14)) / 4) ** 2

    def expansion(self, arrays: Arrays) -> str:
        tile = f"<patch_start>{self.token * self._features(self._TILE_SIDE)}<patch_end>"
        ends = ("", "<patch_newline>")
        tiles = "".join(tile + ends[bool(newline)] for newline in arrays["newlines"])
        return f"{tiles}<im_start>{self.token * self._features(self._SIDE)}<im_end>"

    def spec(self, model: Any) -> Seeing:
        return Seeing(self.token_id)

    def features(self, vlm: Any, arrays: Arrays) -> Features:
        names = ("patch_pixel_values", "pixel_values")
        parts = [self._projected(vlm, arrays[name]) for name in names if name in arrays]
        return Features(mx.concatenate(parts))

    def _projected(self, vlm: Any, pixels: mx.array) -> mx.array:
        """Return features [features, D] of tiles [tiles, 3, side, side]."""
        hidden = vlm.vision_model(pixels)  # [tiles, patches, D]
        side = isqrt(hidden.shape[1])
        hidden = hidden.reshape(-1, side, side, hidden.shape[-1])
        hidden = vlm.vision_model.vit_downsampler1(hidden)
        hidden = vlm.vision_model.vit_downsampler2(hidden)
        projected: mx.array = vlm.vit_large_projector(hidden)
        return projected.reshape(-1, projected.shape[-1])


def _normalised(images: Sequence[Image.Image], side: int) -> np.ndarray[Any, Any]:
    """Return images of one size, [images, 3, side, side]."""
    sized = [image.resize((side, side), Image.Resampling.BILINEAR) for image in images]
    pixels = np.stack([np.asarray(image, np.float32) for image in sized]) / 255.0
    mean, spread = (np.array(value, np.float32) for value in (OPENAI_CLIP_MEAN, OPENAI_CLIP_STD))
    return ((pixels - mean) / spread).transpose(0, 3, 1, 2)
