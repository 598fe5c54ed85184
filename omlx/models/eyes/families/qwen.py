"""Qwen2-VL, 2.5-VL, 3-VL and 3.5: one run of features in a grid, positions on three axes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omlx.engine.vision.reader import Features, Rotary, Seeing
from omlx.models.eyes.eye import MAX_TOKENS
from omlx.models.eyes.family import Arrays, FamilyEye, shape_errors, single


class Qwen2Eye(FamilyEye):
    token = "<|image_pad|>"
    interleaved = False

    def options(self, most: int) -> dict[str, Any]:
        size, side = self.processor.size, self.processor.patch_size * self.processor.merge_size
        longest = min(size["longest_edge"], most * side * side)
        shortest = min(size["shortest_edge"], longest)
        return {"size": {"shortest_edge": shortest, "longest_edge": longest}}

    def tokens(self, width: int, height: int, most: int = MAX_TOKENS) -> int:
        size = self.options(most)["size"]
        bounds = {"min_pixels": size["shortest_edge"], "max_pixels": size["longest_edge"]}
        with shape_errors():
            count = self.processor.get_number_of_image_patches(height, width, bounds)
        return int(count) // int(self.processor.merge_size) ** 2

    def patch_count(self, arrays: Arrays) -> int:
        return int(arrays["pixel_values"].shape[0])

    def grid(self, arrays: Arrays) -> tuple[int, int]:
        _, rows, columns = arrays["image_grid_thw"][0]
        merge = self.processor.merge_size
        return int(rows) // merge, int(columns) // merge

    def expansion(self, arrays: Arrays) -> str:
        rows, columns = self.grid(arrays)
        return self.token * (rows * columns)

    def seeing(self, model: Any) -> Seeing:
        sections = tuple(_rope(self.config)["mrope_section"])
        return Seeing(self.token_id, rotary=Rotary(sections, interleaved=self.interleaved))

    def look(self, vlm: Any, arrays: Arrays) -> Features:
        return single(vlm.vision_tower(arrays["pixel_values"], arrays["image_grid_thw"]))


class Qwen35Eye(Qwen2Eye):
    interleaved = True

    def look(self, vlm: Any, arrays: Arrays) -> Features:
        rows, _ = vlm.vision_tower(arrays["pixel_values"], arrays["image_grid_thw"])
        return single(rows)


class Qwen3Eye(Qwen35Eye):
    """Features of some layers of the tower are added behind the first layers of the text model."""

    def seeing(self, model: Any) -> Seeing:
        marks = len(self.vision.get("deepstack_visual_indexes", (8, 16, 24)))
        sections = tuple(_rope(self.config)["mrope_section"])
        return Seeing(self.token_id, rotary=Rotary(sections, interleaved=True), marks=marks)

    def look(self, vlm: Any, arrays: Arrays) -> Features:
        rows, marks = vlm.vision_tower(arrays["pixel_values"], arrays["image_grid_thw"])
        return Features(rows, tuple(marks))


def _rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the rotary settings: 2.5-VL has them at the top of its config."""
    for part in (config.get("text_config", {}), config):
        for key in ("rope_scaling", "rope_parameters"):
            rope: Mapping[str, Any] = part.get(key) or {}
            if "mrope_section" in rope:
                return rope
    raise KeyError("mrope_section")
