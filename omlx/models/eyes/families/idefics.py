"""SmolVLM and Idefics3: tiles with tags between them, SigLIP, pixel shuffle."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

from omlx.engine.vision.reader import Features, Seeing
from omlx.models.eyes.family import Arrays, FamilyEye, single


class IdeficsEye(FamilyEye):
    token = "<image>"

    @property
    def tile_tokens(self) -> int:
        """Features of one tile: its patches, `scale_factor` squared of them in one."""
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

    def seeing(self, model: Any) -> Seeing:
        return Seeing(self.token_id)

    def look(self, vlm: Any, arrays: Arrays) -> Features:
        tiles = arrays["pixel_values"][0].transpose(0, 2, 3, 1)
        size, mask = self.vision.get("patch_size", 14), arrays["pixel_attention_mask"][0]
        mask = mask[:, : mask.shape[1] // size * size : size, : mask.shape[2] // size * size : size]
        hidden, *_ = vlm.vision_model(tiles, patch_attention_mask=mask.astype(mx.bool_))
        return single(vlm.connector(hidden))
