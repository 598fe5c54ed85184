"""LFM2-VL: SigLIP2 over tiles of packed patches. The processor is mlx-vlm's: transformers' needs
PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_vlm.models.lfm2_vl.processing_lfm2_vl import Lfm2VlNumpyImageProcessor

from omlx.engine.vision.reader import Features, Seeing
from omlx.models.eyes.family import Arrays, FamilyEye, single


class Lfm2Eye(FamilyEye):
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
        """Features of a grid of patches, several of them in one; odd sides are padded."""
        factor = int(self.processor.downsample_factor)
        return -(-int(rows) // factor) * -(-int(columns) // factor)

    def seeing(self, model: Any) -> Seeing:
        return Seeing(self.token_id)

    def look(self, vlm: Any, arrays: Arrays) -> Features:
        views = vlm.encode_images(
            arrays["pixel_values"],
            spatial_shapes=arrays["spatial_shapes"],
            pixel_attention_mask=arrays["pixel_attention_mask"],
        )
        return single(mx.concatenate(views))
