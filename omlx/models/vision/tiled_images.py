"""Image families with tiles: LLaVA, Idefics3 and SmolVLM, LFM2, InternVL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_vlm.models.base import pixel_shuffle
from mlx_vlm.models.lfm2_vl.processing_lfm2_vl import Lfm2VlNumpyImageProcessor
from transformers.image_processing_utils import select_best_resolution
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string
from transformers.utils.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD

from omlx.engine.vision.reader import Features
from omlx.models.vision.family import Arrays, VisionFamily, single


class LlavaFamily(VisionFamily):
    token = "<image>"

    @property
    def keeps_class_token(self) -> bool:
        return bool(self.config.get("vision_feature_select_strategy", "default") != "default")

    def expansion(self, arrays: Arrays) -> str:
        return self.token * (self.patch_count(arrays) + self.keeps_class_token)

    def features(self, vlm: Any, arrays: Arrays) -> Features:
        return single(self._projected(vlm, arrays["pixel_values"]))

    def _projected(self, vlm: Any, pixels: mx.array) -> mx.array:
        """Return features [tiles, patches, D] of tiles [tiles, 3, height, width]."""
        *_, states = vlm.vision_tower(pixels.transpose(0, 2, 3, 1), output_hidden_states=True)
        hidden = states[vlm.vision_feature_layer]
        if not self.keeps_class_token:
            hidden = hidden[:, 1:]
        projected: mx.array = vlm.multi_modal_projector(hidden)
        return projected


class LlavaNextFamily(LlavaFamily):
    """Image of joined tiles, without padding; each row ends with a newline feature.

    Source: `pack_image_features` in transformers' model; mlx-vlm's model omits the tiles and uses
    the overview alone.
    """

    def options(self, most: int) -> dict[str, Any]:
        side = self.processor.crop_size["height"]
        tiles = [height * width // side**2 for height, width in self.processor.image_grid_pinpoints]
        fitting = max(min(tiles), most // self._side(side) ** 2 - 1)
        pairs = zip(self.processor.image_grid_pinpoints, tiles, strict=True)
        return {"image_grid_pinpoints": [shape for shape, count in pairs if count <= fitting]}

    def expansion(self, arrays: Arrays) -> str:
        (first_row, last_row), (first, last) = self._shown(arrays)
        overview = self._side(arrays["pixel_values"].shape[-1]) ** 2 + self.keeps_class_token
        return self.token * (overview + (last_row - first_row) * (last - first + 1))

    def features(self, vlm: Any, arrays: Arrays) -> Features:
        overview, *tiles = self._projected(vlm, arrays["pixel_values"][0])
        side = self._side(arrays["pixel_values"].shape[-1])
        rows, columns = (size // side for size in self._size(arrays))
        grid = mx.stack([tile[-side * side :] for tile in tiles])  # without the class token
        grid = grid.reshape(rows, columns, side, side, -1).swapaxes(1, 2)
        grid = grid.reshape(rows * side, columns * side, -1)
        vertical, horizontal = self._shown(arrays)
        grid = grid[slice(*vertical), slice(*horizontal)]
        ends = mx.broadcast_to(vlm.image_newline, (grid.shape[0], 1, grid.shape[-1]))
        packed = mx.concatenate([grid, ends], axis=1).reshape(-1, grid.shape[-1])
        return Features(mx.concatenate([overview, packed]))

    def _side(self, pixels: int) -> int:
        return int(pixels // self.vision.get("patch_size", 14))

    def _size(self, arrays: Arrays) -> tuple[int, int]:
        """Return (rows, columns) in patches of all tiles together."""
        _, tiles, _, _, side = arrays["pixel_values"].shape
        shapes = self.processor.image_grid_pinpoints
        shapes = [shape for shape in shapes if shape[0] * shape[1] == (tiles - 1) * side**2]
        height, width = select_best_resolution(_image_size(arrays), shapes)
        return self._side(height), self._side(width)

    def _shown(self, arrays: Arrays) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the rows and columns [first, last) of patches that show the image."""
        (height, width), (rows, columns) = _image_size(arrays), self._size(arrays)
        if width / height > columns / rows:
            padding = (rows - int(round(height * (columns / width), 7))) // 2
            return (padding, rows - padding), (0, columns)
        padding = (columns - int(round(width * (rows / height), 7))) // 2
        return (0, rows), (padding, columns - padding)


def _image_size(arrays: Arrays) -> tuple[int, int]:
    """Return (height, width) in pixels of the image before resizing."""
    height, width = arrays["image_sizes"][0]
    return int(height), int(width)


class IdeficsFamily(VisionFamily):
    token = "<image>"

    @property
    def tile_tokens(self) -> int:
        """Features per tile: each covers `scale_factor` squared patches."""
        scale, size = self.config.get("scale_factor", 2), self.vision.get("patch_size", 14)
        return int((self.processor.max_image_size["longest_edge"] // size) ** 2 // scale**2)

    def options(self, most: int) -> dict[str, Any]:
        splits = bool(self.processor.do_image_splitting) and most >= 4 * self.tile_tokens
        return {"return_row_col_info": True, "do_image_splitting": splits}

    def expansion(self, arrays: Arrays) -> str:
        write: Any = get_image_prompt_string
        text: str = write(
            int(arrays["rows"][0][0]),
            int(arrays["cols"][0][0]),
            self.tile_tokens,
            fake_token_around_image="<fake_token_around_image>",
            image_token=self.token,
            global_image_token="<global-img>",
        )
        return text

    def features(self, vlm: Any, arrays: Arrays) -> Features:
        tiles = arrays["pixel_values"][0].transpose(0, 2, 3, 1)
        size, mask = self.vision.get("patch_size", 14), arrays["pixel_attention_mask"][0]
        mask = mask[:, : mask.shape[1] // size * size : size, : mask.shape[2] // size * size : size]
        hidden, *_ = vlm.vision_model(tiles, patch_attention_mask=mask.astype(mx.bool_))
        return single(vlm.connector(hidden))


class Lfm2Family(VisionFamily):
    token = "<image>"

    def _read_processor(self, directory: Path) -> Any:
        return Lfm2VlNumpyImageProcessor.from_pretrained(str(directory))

    def options(self, most: int) -> dict[str, Any]:
        splits = self.processor.do_image_splitting and most >= 4 * self.processor.max_image_tokens
        return {"do_image_splitting": splits}

    def patch_count(self, arrays: Arrays) -> int:
        return int(arrays["pixel_attention_mask"].sum())

    def expansion(self, arrays: Arrays) -> str:
        rows, columns = int(arrays["image_rows"][0]), int(arrays["image_cols"][0])
        texts = [self.token * self._features(*shape) for shape in arrays["spatial_shapes"]]
        if rows * columns > 1:
            places = [(row + 1, column + 1) for row in range(rows) for column in range(columns)]
            for i, (row, column) in enumerate(places):
                texts[i] = f"<|img_row_{row}_col_{column}|>{texts[i]}"
            if len(texts) > len(places):
                texts[-1] = f"<|img_thumbnail|>{texts[-1]}"
        return f"<|image_start|>{''.join(texts)}<|image_end|>"

    def _features(self, rows: int, columns: int) -> int:
        """Return the number of features of a patch grid; odd sides are padded."""
        factor = int(self.processor.downsample_factor)
        return -(-int(rows) // factor) * -(-int(columns) // factor)

    def features(self, vlm: Any, arrays: Arrays) -> Features:
        views = vlm.encode_images(
            arrays["pixel_values"],
            spatial_shapes=arrays["spatial_shapes"],
            pixel_attention_mask=arrays["pixel_attention_mask"],
        )
        return single(mx.concatenate(views))


class InternFamily(VisionFamily):
    """Layout of transformers."""

    token = "<IMG_CONTEXT>"

    @property
    def tile_tokens(self) -> int:
        return int(self.config.get("image_seq_length", 256))

    def options(self, most: int) -> dict[str, Any]:
        tiles = max(1, most // self.tile_tokens - 1)  # without the thumbnail
        return {"crop_to_patches": True, "max_patches": min(self.processor.max_patches, tiles)}

    def expansion(self, arrays: Arrays) -> str:
        tiles = arrays["pixel_values"].shape[0]
        return f"<img>{self.token * (self.tile_tokens * tiles)}</img>"

    def features(self, vlm: Any, arrays: Arrays) -> Features:
        hidden, _ = vlm.vision_tower(arrays["pixel_values"].transpose(0, 2, 3, 1))
        merged = pixel_shuffle(hidden[:, 1:], vlm.config.downsample_ratio)
        return single(vlm.multi_modal_projector(merged))


class InternChatFamily(InternFamily):
    """Layout of the models' authors, with image settings in the config.

    Their chat templates support text only, in which image markers are written.
    """

    text_marker = "<image>\n"
    marker = "<image>"

    @property
    def tile_tokens(self) -> int:
        side = self._tile_pixels // self.vision.get("patch_size", 14)
        return int((side * self.config.get("downsample_ratio", 0.5)) ** 2)

    @property
    def _tile_pixels(self) -> int:
        return int(self.config.get("force_image_size") or self.vision.get("image_size", 448))

    def _read_processor(self, directory: Path) -> Any:
        build: Any = GotOcr2ImageProcessorPil
        return build(
            size={"height": self._tile_pixels, "width": self._tile_pixels},
            min_patches=self.config.get("min_dynamic_patch", 1),
            max_patches=self.config.get("max_dynamic_patch", 12),
            image_mean=IMAGENET_DEFAULT_MEAN,
            image_std=IMAGENET_DEFAULT_STD,
        )

    def features(self, vlm: Any, arrays: Arrays) -> Features:
        pixels = arrays["pixel_values"].transpose(0, 2, 3, 1)
        hidden, *_ = vlm.vision_model(pixels, output_hidden_states=True)
        hidden = pixel_shuffle(hidden[:, 1:], vlm.downsample_ratio)
        for layer in vlm.mlp1:
            hidden = layer(hidden)
        return single(hidden)
