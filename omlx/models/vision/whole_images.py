"""Image families with one grid of features: Qwen, Gemma, Pixtral and Mistral 3."""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import mlx.core as mx

from omlx.engine.vision.reader import Features, Rotary, Seeing
from omlx.models.vision.family import Arrays, VisionFamily, single
from omlx.text.tokens import Tokenizer

if TYPE_CHECKING:
    from PIL.Image import Image


class Qwen2Family(VisionFamily):
    token = "<|image_pad|>"
    interleaved = False

    def options(self, most: int) -> dict[str, Any]:
        size, side = self.processor.size, self.processor.patch_size * self.processor.merge_size
        longest = min(size["longest_edge"], most * side * side)
        shortest = min(size["shortest_edge"], longest)
        return {"size": {"shortest_edge": shortest, "longest_edge": longest}}

    def patch_count(self, arrays: Arrays) -> int:
        return int(arrays["pixel_values"].shape[0])

    def grid(self, arrays: Arrays) -> tuple[int, int] | None:
        _, rows, columns = arrays["image_grid_thw"][0]
        merge = self.processor.merge_size
        return int(rows) // merge, int(columns) // merge

    def expansion(self, arrays: Arrays) -> str:
        return self.token * (self.patch_count(arrays) // int(self.processor.merge_size) ** 2)

    def spec(self, model: Any) -> Seeing:
        sections = tuple(_rope(self.config)["mrope_section"])
        return Seeing(self.token_id, rotary=Rotary(sections, interleaved=self.interleaved))

    def features(self, vlm: Any, arrays: Arrays) -> Features:
        return single(vlm.vision_tower(arrays["pixel_values"], arrays["image_grid_thw"]))


class Qwen35Family(Qwen2Family):
    interleaved = True

    def features(self, vlm: Any, arrays: Arrays) -> Features:
        rows, _ = vlm.vision_tower(arrays["pixel_values"], arrays["image_grid_thw"])
        return single(rows)


class Qwen3Family(Qwen35Family):
    """Features of some tower layers are added after the text model's first layers."""

    def spec(self, model: Any) -> Seeing:
        marks = len(self.vision.get("deepstack_visual_indexes", (8, 16, 24)))
        sections = tuple(_rope(self.config)["mrope_section"])
        return Seeing(self.token_id, rotary=Rotary(sections, interleaved=True), marks=marks)

    def features(self, vlm: Any, arrays: Arrays) -> Features:
        rows, marks = vlm.vision_tower(arrays["pixel_values"], arrays["image_grid_thw"])
        return Features(rows, tuple(marks))


def _rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the rotary settings: Qwen2.5-VL has them at the top of its config."""
    for part in (config.get("text_config", {}), config):
        for key in ("rope_scaling", "rope_parameters"):
            rope: Mapping[str, Any] = part.get(key) or {}
            if "mrope_section" in rope:
                return rope
    raise KeyError("mrope_section")


SOFT_TOKENS: Final = (70, 140, 280, 560, 1120)
"""Tokens — sizes of an image supported by Gemma 4."""


class Gemma3Family(VisionFamily):
    """Images of constant size; features attend to each other on all layers."""

    token = "<image_soft_token>"
    marker = "<start_of_image>"

    def expansion(self, arrays: Arrays) -> str:
        tokens = self.token * int(self.config.get("mm_tokens_per_image", 256))
        return f"\n\n<start_of_image>{tokens}<end_of_image>\n\n"

    def spec(self, model: Any) -> Seeing:
        # mlx-lm rounds the factor of the embeddings to bfloat16
        hidden = self.config["text_config"].get("hidden_size", 2304)
        scale = mx.array(hidden**0.5, mx.bfloat16).astype(mx.float32).item()
        return Seeing(self.token_id, scale=float(str(scale)), open_layers="all")

    def features(self, vlm: Any, arrays: Arrays) -> Features:
        hidden, *_ = vlm.vision_tower(arrays["pixel_values"].transpose(0, 2, 3, 1))
        return single(vlm.multi_modal_projector(hidden))


class Gemma4Family(VisionFamily):
    """Images of variable size, with their aspect ratio kept.

    In larger models features attend to each other on sliding-window layers; in smaller models ids
    at images must be 0, for per-layer embeddings.
    """

    def __init__(self, directory: Path, config: Mapping[str, Any], tokenizer: Tokenizer) -> None:
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

    def spec(self, model: Any) -> Seeing:
        text = self.config["text_config"]
        opens = text.get("use_bidirectional_attention") == "vision"
        return Seeing(
            blank=0 if text.get("hidden_size_per_layer_input") else self.token_id,
            scale=text["hidden_size"] ** 0.5,
            open_layers="sliding" if opens else "none",
        )

    def features(self, vlm: Any, arrays: Arrays) -> Features:
        places = arrays["image_position_ids"]
        return single(vlm.encode_image(arrays["pixel_values"], places))


class Gemma4UnifiedFamily(Gemma4Family):
    """Patches are projected, without a tower.

    The processor is mlx-vlm's: transformers' needs PyTorch.
    """

    def _read_processor(self, directory: Path) -> Any:
        from mlx_vlm.models.gemma4_unified import processing_gemma4_unified as processing  # noqa: PLC0415 — the extra

        return processing.Gemma4UnifiedImageProcessor.from_pretrained(str(directory))

    def arrays(self, image: Image, most: int) -> dict[str, Any]:
        found, _ = self.processor.preprocess([image], **self.options(most))
        return dict(found)


class PixtralFamily(VisionFamily):
    token = "[IMG]"

    @property
    def side(self) -> int:
        """Pixels along the side of one feature."""
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

    def features(self, vlm: Any, arrays: Arrays) -> Features:
        return single(vlm.multi_modal_projector(self._hidden(vlm, arrays)))

    def _hidden(self, vlm: Any, arrays: Arrays) -> mx.array:
        """Return the hidden states [1, patches, D] of the layer read by the projector."""
        pixels, sizes = arrays["pixel_values"].transpose(0, 2, 3, 1), arrays["image_sizes"]
        *_, states = vlm.vision_tower(pixels, output_hidden_states=True, image_sizes=sizes)
        hidden: mx.array = states[vlm.vision_feature_layer]
        return hidden


class Mistral3Family(PixtralFamily):
    """Neighbouring patches are merged."""

    def features(self, vlm: Any, arrays: Arrays) -> Features:
        hidden = self._hidden(vlm, arrays)[0]
        return single(vlm.multi_modal_projector(hidden, arrays["image_sizes"]))
