"""Configurations of tiny vision-language models whose text models are mlx-vlm's, too."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from tests.zoo.borrowed import CONFIGS

FAMILIES = ("ernie4_5_moe_vl", "glm5_next", "inkling", "mimo_v2", "qwen4_exp", "step3p7")
OFTEN = "ernie4_5_moe_vl"
"""The family of the quick lane: with positions and kinds of tokens as arguments."""


def configs(
    ids: Mapping[str, int], vocab: int, tower: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return the zoo's configurations with a larger vocabulary and towers of three layers.

    `tower` is one of Qwen.
    """
    image = {"image_token_id": ids["<|image_pad|>"], "video_token_id": ids["<|video_pad|>"]}
    begin = ids["<|vision_start|>"]
    start = {"vision_start_token_id": begin}
    changes: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "ernie4_5_moe_vl": (
            {"im_patch_id": ids["<|IMAGE_PLACEHOLDER|>"], "image_start_token_id": begin},
            {**tower, "embed_dim": 32, "mlp_ratio": 2},
        ),
        "glm5_next": ({"image_token_id": ids["<|image|>"]}, {**tower, "patch_size": 14}),
        "inkling": ({"image_token_id": ids["<|unused_200054|>"]}, {"n_layers": 3}),
        "mimo_v2": ({**image, **start}, {**tower, "vit_window_attn_types": [-1, -1, -1]}),
        "qwen4_exp": ({**image, **start}, tower),
        "step3p7": ({"image_token_id": ids["<im_patch>"]}, {"layers": 3}),
    }
    made = {}
    for name in FAMILIES:
        config = copy.deepcopy(CONFIGS[name])
        top, vision = changes[name]
        config |= top
        config["vision_config"] |= vision
        for part in (config, config.get("text_config", {})):
            if "vocab_size" in part:
                part["vocab_size"] = vocab
        made[name] = config
    return made
