"""Directories of tiny vision-language models: random weights in mlx-vlm's layout, the demo's
tokenizer with the special tokens of each family, a chat template that shows images.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
from mlx.utils import tree_flatten

DEMO: Final = Path(__file__).resolve().parents[3] / "omlx/bundled/omlx-demo/target"
FIRST: Final = 2048
"""The first id behind the demo's vocabulary."""

VOCAB: Final = 2112
"""Ids of every model here."""

SPECIAL: Final = (
    *("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"),
    *("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"),
    *("<image_soft_token>", "<start_of_image>", "<end_of_image>"),
    *("<|image|>", "<|image>", "<image|>"),
    *("[IMG]", "[IMG_BREAK]", "[IMG_END]"),
    *("<IMG_CONTEXT>", "<img>", "</img>"),
    *("<|image_start|>", "<|image_end|>", "<|img_thumbnail|>"),
    *(f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)),
)
IDS: Final = {token: FIRST + i for i, token in enumerate(SPECIAL)}

TEXT: Final = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "intermediate_size": 96,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCAB,
    "rope_theta": 10000.0,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}
TOWER: Final = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "num_hidden_layers": 3,
    "patch_size": 4,
    "in_channels": 3,
}
QWEN_TOWER: Final = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "depth": 3,
    "patch_size": 4,
    "spatial_patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 64,
    "in_channels": 3,
}
QWEN_IMAGES: Final = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": 4,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "size": {"shortest_edge": 256, "longest_edge": 65536},
}
QWEN_IDS: Final = {
    "image_token_id": IDS["<|image_pad|>"],
    "video_token_id": IDS["<|video_pad|>"],
    "vision_start_token_id": IDS["<|vision_start|>"],
    "vision_end_token_id": IDS["<|vision_end|>"],
}

CONFIGS: Final[dict[str, dict[str, Any]]] = {
    "qwen2_vl": {
        **QWEN_IDS,
        **TEXT,
        "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]},
        "vision_config": {
            **{key: value for key, value in QWEN_TOWER.items() if key != "out_hidden_size"},
            "embed_dim": 32,
            "hidden_size": 64,
            "mlp_ratio": 2,
        },
    },
    "qwen2_5_vl": {
        **QWEN_IDS,
        **TEXT,
        "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]},
        "vision_config": {**QWEN_TOWER, "window_size": 16, "fullatt_block_indexes": [1]},
    },
    "qwen3_vl": {
        **QWEN_IDS,
        "text_config": {
            **TEXT,
            "model_type": "qwen3_vl_text",
            "rope_scaling": {"type": "default", "mrope_section": [6, 5, 5]},
        },
        "vision_config": {
            **QWEN_TOWER,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0, 1],
        },
    },
    "qwen3_5": {
        **QWEN_IDS,
        "text_config": {
            **TEXT,
            "model_type": "qwen3_5_text",
            "num_hidden_layers": 4,
            "linear_num_value_heads": 4,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 32,
            "linear_conv_kernel_dim": 4,
            "full_attention_interval": 4,
            "rope_parameters": {
                "type": "default",
                "mrope_section": [2, 1, 1],
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.25,
            },
        },
        "vision_config": {
            **QWEN_TOWER,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [],
        },
    },
    "smolvlm": {
        "image_token_id": IDS["<image>"],
        "scale_factor": 2,
        "text_config": {**TEXT, "model_type": "llama"},
        "vision_config": {**TOWER, "image_size": 32},
    },
}
CONFIGS["idefics3"] = CONFIGS["smolvlm"]
IMAGES: Final[dict[str, dict[str, Any]]] = {
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5"), QWEN_IMAGES),
    **{
        name: {
            "image_processor_type": kind,
            "size": {"longest_edge": 64},
            "max_image_size": {"longest_edge": 32},
        }
        for name, kind in (
            ("smolvlm", "SmolVLMImageProcessor"),
            ("idefics3", "Idefics3ImageProcessor"),
        )
    },
}
TOWERS: Final = {"smolvlm": "idefics3"}
"""`model_type` of a tower, where it is another one."""

MARKERS: Final = {
    **dict.fromkeys(
        ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5"),
        "<|vision_start|><|image_pad|><|vision_end|>",
    ),
    "smolvlm": "<image>",
    "idefics3": "<image>",
}


def save_vlm(model_type: str, folder: Path, seed: int = 0) -> Any:
    """Write the tiny model of a family to `folder`. Return mlx-vlm's model of it, whole."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"model_type": model_type, **CONFIGS[model_type]}
    config.setdefault("vocab_size", VOCAB)
    kind = TOWERS.get(model_type, model_type)
    config["vision_config"] = {"model_type": kind, **config["vision_config"]}
    save_tokenizer(folder, MARKERS[model_type])
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps(IMAGES[model_type]))
    whole = build(config)
    randomise(whole, seed)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(whole.parameters())))
    return whole


def build(config: Mapping[str, Any]) -> Any:
    """Return mlx-vlm's model of a config, as its own loader builds it."""
    utils = import_module("mlx_vlm.utils")
    module, _ = utils.get_model_and_args(config=dict(config))
    parts = json.loads(json.dumps({"text_config": {}, "audio_config": {}, **config}))
    settings = module.ModelConfig.from_dict(parts)
    names = ["text", "vision", "perceiver", "projector", "audio"]
    settings = utils.update_module_configs(settings, module, parts, names)
    return module.Model(settings)


def save_tokenizer(folder: Path, marker: str) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(DEMO / name, folder / name)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokenizer["added_tokens"] += [
        {"id": IDS[token], "content": token, "special": True, **flags} for token in SPECIAL
    ]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["chat_template"] = TEMPLATE.replace("MARKER", marker)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


TEMPLATE: Final = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}MARKER{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def randomise(model: Any, seed: int) -> None:
    """Draw weights whose outputs neither vanish nor grow."""
    flat = tree_flatten(model.parameters())
    keys = mx.random.split(mx.random.key(seed), len(flat))
    drawn = []
    for (name, weight), key in zip(flat, keys, strict=True):
        if not mx.issubdtype(weight.dtype, mx.floating):
            continue
        noise = mx.random.normal(weight.shape, key=key)
        if weight.ndim == 1:
            drawn.append((name, weight + 0.1 * noise))
        else:
            inputs = weight.size // weight.shape[0]
            drawn.append((name, noise * inputs**-0.5))
    model.load_weights(drawn, strict=False)
    mx.eval(model.parameters())
