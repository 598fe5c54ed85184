"""Pixtral and Mistral 3: a run of features for each row of an image, breaks between them."""

from __future__ import annotations

from math import isqrt
from typing import Any

import mlx.core as mx

from omlx.engine.vision.reader import Features, Seeing
from omlx.models.eyes.family import Arrays, FamilyEye, single


class PixtralEye(FamilyEye):
    token = "[IMG]"

    @property
    def side(self) -> int:
        """Pixels of the side of one feature."""
        return int(self.vision.get("patch_size", 16)) * int(
            self.config.get("spatial_merge_size", 1)
        )

    def options(self, most: int) -> dict[str, Any]:
        longest = min(self.processor.size["longest_edge"], isqrt(most) * self.side)
        return {"patch_size": self.side, "size": {"longest_edge": longest}}

    def expansion(self, arrays: Arrays) -> str:
        height, width = arrays["image_sizes"][0]
        row = self.token * (int(width) // self.side)
        return "[IMG_BREAK]".join([row] * (int(height) // self.side)) + "[IMG_END]"

    def seeing(self, model: Any) -> Seeing:
        return Seeing(self.token_id)

    def look(self, vlm: Any, arrays: Arrays) -> Features:
        return single(vlm.multi_modal_projector(self._hidden(vlm, arrays)))

    def _hidden(self, vlm: Any, arrays: Arrays) -> mx.array:
        """Return the hidden states [1, patches, D] of the layer that the projector reads."""
        pixels, sizes = arrays["pixel_values"].transpose(0, 2, 3, 1), arrays["image_sizes"]
        *_, states = vlm.vision_tower(pixels, output_hidden_states=True, image_sizes=sizes)
        hidden: mx.array = states[vlm.vision_feature_layer]
        return hidden


class Mistral3Eye(PixtralEye):
    """Neighbouring patches are merged."""

    def look(self, vlm: Any, arrays: Arrays) -> Features:
        hidden = self._hidden(vlm, arrays)[0]
        return single(vlm.multi_modal_projector(hidden, arrays["image_sizes"]))
