"""Gemma 3 and 4: features of an image attend to each other; embeddings are scaled by the model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import mlx.core as mx

from omlx.engine.vision.reader import Features, Seeing
from omlx.models.eyes.eye import MAX_TOKENS
from omlx.models.eyes.family import Arrays, FamilyEye, single

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper
    from PIL.Image import Image

SOFT_TOKENS: Final = (70, 140, 280, 560, 1120)
"""Sizes of an image that Gemma 4 knows, in tokens."""


class Gemma3Eye(FamilyEye):
    """Every image has the same size. Its features attend to each other on all layers."""

    token = "<image_soft_token>"

    @property
    def marker(self) -> str:
        return "<start_of_image>"

    def tokens(self, width: int, height: int, most: int = MAX_TOKENS) -> int:
        return int(self.config.get("mm_tokens_per_image", 256))

    def expansion(self, arrays: Arrays) -> str:
        return f"\n\n<start_of_image>{self.token * self.tokens(1, 1)}<end_of_image>\n\n"

    def seeing(self, model: Any) -> Seeing:
        # mlx-lm rounds the factor of the embeddings to bfloat16
        hidden = self.config["text_config"].get("hidden_size", 2304)
        scale = mx.array(hidden**0.5, mx.bfloat16).astype(mx.float32).item()
        return Seeing(self.token_id, scale=float(str(scale)), open_layers="all")

    def look(self, vlm: Any, arrays: Arrays) -> Features:
        hidden, *_ = vlm.vision_tower(arrays["pixel_values"].transpose(0, 2, 3, 1))
        return single(vlm.multi_modal_projector(hidden))


class Gemma4Eye(FamilyEye):
    """Images keep their ratio. In the larger models features attend to each other on the
    sliding-window layers; in the smaller ones ids at images must be 0, for per-layer embeddings.
    """

    def __init__(
        self, directory: Path, config: Mapping[str, Any], tokenizer: TokenizerWrapper
    ) -> None:
        names = ("boi_token_id", "image_token_id", "eoi_token_id")
        texts = [str(tokenizer.convert_ids_to_tokens(config[name])) for name in names]
        self._begin, self._token, self._end = texts
        super().__init__(directory, config, tokenizer)

    @property
    def token(self) -> str:  # type: ignore[override]  # the config names it
        return self._token

    def options(self, most: int) -> dict[str, Any]:
        fitting = [n for n in SOFT_TOKENS if n <= min(most, self.processor.max_soft_tokens)]
        return {"max_soft_tokens": max(fitting, default=SOFT_TOKENS[0])}

    def patch_count(self, arrays: Arrays) -> int:
        return int(arrays["pixel_values"].shape[1])

    def expansion(self, arrays: Arrays) -> str:
        count = int(arrays["num_soft_tokens_per_image"][0])
        return f"{self._begin}{self.token * count}{self._end}"

    def seeing(self, model: Any) -> Seeing:
        text = self.config["text_config"]
        opens = text.get("use_bidirectional_attention") == "vision"
        return Seeing(
            blank=0 if text.get("hidden_size_per_layer_input") else self.token_id,
            scale=text["hidden_size"] ** 0.5,
            open_layers="sliding" if opens else "none",
        )

    def look(self, vlm: Any, arrays: Arrays) -> Features:
        places = arrays["image_position_ids"]
        return single(vlm.encode_image(arrays["pixel_values"], places))


class Gemma4UnifiedEye(Gemma4Eye):
    """Patches are projected, without a tower. The processor is mlx-vlm's: transformers' needs
    PyTorch.
    """

    def _read_processor(self, directory: Path) -> Any:
        from mlx_vlm.models.gemma4_unified import processing_gemma4_unified as processing  # noqa: PLC0415 — the extra

        return processing.Gemma4UnifiedImageProcessor.from_pretrained(str(directory))

    def arrays(self, image: Image, most: int) -> dict[str, Any]:
        found, _ = self.processor.preprocess([image], **self.options(most))
        return dict(found)
