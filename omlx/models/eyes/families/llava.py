"""LLaVA 1.5: one square image, CLIP or SigLIP."""

from __future__ import annotations

from typing import Any

from omlx.engine.vision.reader import Features, Seeing
from omlx.models.eyes.family import Arrays, FamilyEye, single


class LlavaEye(FamilyEye):
    token = "<image>"

    def expansion(self, arrays: Arrays) -> str:
        count = self.patch_count(arrays)
        if self.config.get("vision_feature_select_strategy", "default") != "default":
            count += 1  # the class token stays
        return self.token * count

    def seeing(self, model: Any) -> Seeing:
        return Seeing(self.token_id)

    def look(self, vlm: Any, arrays: Arrays) -> Features:
        pixels = arrays["pixel_values"].transpose(0, 2, 3, 1)
        *_, states = vlm.vision_tower(pixels, output_hidden_states=True)
        hidden = states[vlm.vision_feature_layer]
        if vlm.vision_feature_select_strategy == "default":
            hidden = hidden[:, 1:]
        return single(vlm.multi_modal_projector(hidden))
