"""InternVL: square tiles and a thumbnail, all of them one run of features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mlx_vlm.models.base import pixel_shuffle
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.utils.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD

from omlx.engine.vision.reader import Features, Seeing
from omlx.models.eyes.family import Arrays, FamilyEye, single


class InternEye(FamilyEye):
    """The layout of transformers."""

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

    def seeing(self, model: Any) -> Seeing:
        return Seeing(self.token_id)

    def look(self, vlm: Any, arrays: Arrays) -> Features:
        hidden, _ = vlm.vision_tower(arrays["pixel_values"].transpose(0, 2, 3, 1))
        merged = pixel_shuffle(hidden[:, 1:], vlm.config.downsample_ratio)
        return single(vlm.multi_modal_projector(merged))


class InternChatEye(InternEye):
    """The layout of the models' authors, whose settings of images are in the config. Their chat
    templates know texts alone, in which images are written.
    """

    text_marker = "<image>\n"

    @property
    def marker(self) -> str:
        return "<image>"

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

    def look(self, vlm: Any, arrays: Arrays) -> Features:
        pixels = arrays["pixel_values"].transpose(0, 2, 3, 1)
        hidden, *_ = vlm.vision_model(pixels, output_hidden_states=True)
        hidden = pixel_shuffle(hidden[:, 1:], vlm.downsample_ratio)
        for layer in vlm.mlp1:
            hidden = layer(hidden)
        return single(hidden)
