"""InternVL: square tiles and a thumbnail, all of them one run of features."""

from __future__ import annotations

from typing import Any

from mlx_vlm.models.internvl.internvl import pixel_shuffle

from omlx.engine.vision.reader import Features, Seeing
from omlx.models.eyes.family import Arrays, FamilyEye, single


class InternEye(FamilyEye):
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
