"""LLaVA: one square image (1.5), or an overview and tiles (NeXT); CLIP or SigLIP."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from transformers.image_processing_utils import select_best_resolution

from omlx.engine.vision.reader import Features, Seeing
from omlx.models.eyes.family import Arrays, FamilyEye, single


class LlavaEye(FamilyEye):
    token = "<image>"

    @property
    def keeps_class_token(self) -> bool:
        return bool(self.config.get("vision_feature_select_strategy", "default") != "default")

    def expansion(self, arrays: Arrays) -> str:
        return self.token * (self.patch_count(arrays) + self.keeps_class_token)

    def seeing(self, model: Any) -> Seeing:
        return Seeing(self.token_id)

    def look(self, vlm: Any, arrays: Arrays) -> Features:
        return single(self._projected(vlm, arrays["pixel_values"]))

    def _projected(self, vlm: Any, pixels: mx.array) -> mx.array:
        """Return features [tiles, patches, D] of tiles [tiles, 3, height, width]."""
        *_, states = vlm.vision_tower(pixels.transpose(0, 2, 3, 1), output_hidden_states=True)
        hidden = states[vlm.vision_feature_layer]
        if not self.keeps_class_token:
            hidden = hidden[:, 1:]
        projected: mx.array = vlm.multi_modal_projector(hidden)
        return projected


class LlavaNextEye(LlavaEye):
    """Tiles are put together, without the padding around the image, and each row of them ends with
    a feature of its own. Source: `pack_image_features` in transformers' model; mlx-vlm's model puts
    the overview alone into the prompt.
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

    def look(self, vlm: Any, arrays: Arrays) -> Features:
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
        """Patches along the side of a tile."""
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
    """Return (height, width) in pixels of the image before it was resized."""
    height, width = arrays["image_sizes"][0]
    return int(height), int(width)
