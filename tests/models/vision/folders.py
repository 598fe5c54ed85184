"""Directories of tiny vision-language models: random weights in mlx-vlm's layout, the demo's
tokenizer with the special tokens of each family, its chat template with images.
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

from tests.models.vision import borrowed

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
    *("<|IMAGE_PLACEHOLDER|>", "<|unused_200054|>"),
    *("<im_patch>", "<im_start>", "<im_end>", "<patch_start>", "<patch_end>", "<patch_newline>"),
    *(f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)),
    *(f"<|img_row_{row}_col_{column}|>" for row in range(1, 11) for column in range(1, 3)),
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
QWENS: Final = (
    *("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"),
    *("qwen3_5", "qwen3_5_moe"),
)
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
PIXTRAL_IMAGES: Final = {
    "image_processor_type": "PixtralImageProcessor",
    "patch_size": 4,
    "size": {"longest_edge": 64},
}
QWEN_IDS: Final = {
    "image_token_id": IDS["<|image_pad|>"],
    "video_token_id": IDS["<|video_pad|>"],
    "vision_start_token_id": IDS["<|vision_start|>"],
    "vision_end_token_id": IDS["<|vision_end|>"],
}

MROPE: Final = {"rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]}}
PLACED: Final = {**QWEN_TOWER, "num_position_embeddings": 64}
UNTIED: Final = {"tie_word_embeddings": False}


def text_of(model_type: str, **more: Any) -> dict[str, Any]:
    return {**TEXT, "model_type": model_type, **more}


def tower_of(**more: Any) -> dict[str, Any]:
    return {**TOWER, "image_size": 32, **more}


CLIP: Final = tower_of(projection_dim=32, vocab_size=64)
PIXTRAL: Final = tower_of(head_dim=16, image_size=64)
CONFIGS: Final[dict[str, dict[str, Any]]] = {
    "qwen2_vl": {
        **QWEN_IDS,
        **TEXT,
        **MROPE,
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
        **MROPE,
        "vision_config": {**QWEN_TOWER, "window_size": 16, "fullatt_block_indexes": [1]},
    },
    "qwen3_vl": {
        **QWEN_IDS,
        "text_config": text_of(
            "qwen3_vl_text", rope_scaling={"type": "default", "mrope_section": [6, 5, 5]}
        ),
        "vision_config": {**PLACED, "deepstack_visual_indexes": [0, 1]},
    },
    "qwen3_5": {
        **QWEN_IDS,
        "text_config": text_of(
            "qwen3_5_text",
            num_hidden_layers=4,
            linear_num_value_heads=4,
            linear_num_key_heads=2,
            linear_key_head_dim=32,
            linear_value_head_dim=32,
            linear_conv_kernel_dim=4,
            full_attention_interval=4,
            rope_parameters={
                "type": "default",
                "mrope_section": [2, 1, 1],
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.25,
            },
        ),
        "vision_config": {**PLACED, "deepstack_visual_indexes": []},
    },
    "smolvlm": {
        "image_token_id": IDS["<image>"],
        "scale_factor": 2,
        "text_config": text_of("llama", **UNTIED),
        "vision_config": tower_of(),
    },
    "gemma3": {
        "image_token_index": IDS["<image_soft_token>"],
        "mm_tokens_per_image": 16,
        "hidden_size": 64,
        "pad_token_id": 0,
        "text_config": text_of(
            "gemma3_text",
            rope_theta=1000000.0,
            sliding_window=32,
            sliding_window_pattern=2,
            query_pre_attn_scalar=32,
            mm_tokens_per_image=16,
        ),
        "vision_config": tower_of(),
    },
    "gemma4": {
        "image_token_id": IDS["<|image|>"],
        "boi_token_id": IDS["<|image>"],
        "eoi_token_id": IDS["<image|>"],
        "audio_config": None,
        "hidden_size": 64,
        "text_config": text_of(
            "gemma4_text",
            layer_types=["sliding_attention", "full_attention"] * 2,
            rope_parameters={
                "full_attention": {
                    "partial_rotary_factor": 0.25,
                    "rope_theta": 1000000.0,
                    "rope_type": "proportional",
                },
                "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
            },
            num_hidden_layers=4,
            global_head_dim=32,
            vocab_size_per_layer_input=VOCAB,
            num_kv_shared_layers=0,
            hidden_size_per_layer_input=0,
            sliding_window=64,
            sliding_window_pattern=2,
            use_bidirectional_attention="vision",
            use_double_wide_mlp=False,
        ),
        "vision_config": {
            **TOWER,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "global_head_dim": 16,
            "pooling_kernel_size": 3,
            "default_output_length": 70,
            "position_embedding_size": 256,
        },
    },
    "pixtral": {
        "image_token_index": IDS["[IMG]"],
        "text_config": text_of("mistral"),
        "vision_config": PIXTRAL,
    },
    "llava": {
        "image_token_index": IDS["<image>"],
        "text_config": text_of("llama"),
        "vision_config": CLIP,
    },
    "lfm2_vl": {
        "image_token_id": IDS["<image>"],
        "image_token_index": IDS["<image>"],
        "downsample_factor": 2,
        "projector_hidden_size": 64,
        "vision_feature_layer": -1,
        "text_config": text_of(
            "lfm2",
            num_hidden_layers=4,
            block_ff_dim=96,
            block_dim=64,
            conv_L_cache=3,
            conv_bias=False,
            block_multiple_of=8,
            block_ffn_dim_multiplier=1.0,
            block_auto_adjust_ff_dim=False,
            norm_eps=1e-5,
            layer_types=["conv", "full_attention"] * 2,
        ),
        "vision_config": {**TOWER, "num_patches": 64},
    },
    "internvl_chat": {
        "image_token_index": IDS["<IMG_CONTEXT>"],
        "downsample_ratio": 0.5,
        "force_image_size": 32,
        "max_dynamic_patch": 4,
        "llm_config": text_of("qwen2", **UNTIED, attention_bias=True),
        "vision_config": tower_of(num_hidden_layers=5),
    },
    "internvl": {
        "image_token_id": IDS["<IMG_CONTEXT>"],
        "downsample_ratio": 0.5,
        "image_seq_length": 16,
        "text_config": text_of("qwen3", **UNTIED),
        "vision_config": tower_of(image_size=[32, 32], patch_size=[4, 4]),
    },
}
CONFIGS |= {
    "idefics3": CONFIGS["smolvlm"],
    "mistral3": {**CONFIGS["pixtral"], "spatial_merge_size": 2},
    "llava_next": {**CONFIGS["llava"], "text_config": text_of("mistral", **UNTIED)},
    "gemma4_unified": {
        **CONFIGS["gemma4"],
        "text_config": {
            **CONFIGS["gemma4"]["text_config"],
            "model_type": "gemma4_unified_text",
            "attention_k_eq_v": False,
        },
        "vision_config": {
            "patch_size": 4,
            "pooling_kernel_size": 3,
            "model_patch_size": 12,
            "mm_embed_dim": 64,
            "mm_posemb_size": 256,
            "num_soft_tokens": 70,
            "output_proj_dims": 64,
        },
    },
}
CONFIGS |= borrowed.configs(IDS, VOCAB, QWEN_TOWER)
EXPERTS: Final = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
    "tie_word_embeddings": False,
}
for name in ("qwen3_vl", "qwen3_5"):
    dense = CONFIGS[name]
    text = {**dense["text_config"], **EXPERTS, "model_type": f"{name}_moe_text"}
    CONFIGS[f"{name}_moe"] = {**dense, "text_config": text}
TOWERS: Final = {
    "smolvlm": "idefics3",
    "gemma3": "siglip_vision_model",
    "gemma4": "gemma4_vision",
    "gemma4_unified": "gemma4_unified_vision",
    "pixtral": "pixtral",
    "mistral3": "pixtral",
    "llava": "clip_vision_model",
    "llava_next": "clip_vision_model",
    "internvl": "internvl_vision",
    "internvl_chat": "intern_vit_6b",
}
"""`model_type` of a tower, where it is another one."""

GEMMA4_IMAGES: Final = {
    "image_processor_type": "Gemma4ImageProcessor",
    "patch_size": 4,
    "max_soft_tokens": 70,
    "pooling_kernel_size": 3,
}
SMOL_IMAGES: Final = {"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 32}}
CLIP_IMAGES: Final = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
IMAGES: Final[dict[str, dict[str, Any]]] = {
    **{name: {} for name in borrowed.FAMILIES},
    **dict.fromkeys((*QWENS, "mimo_v2", "qwen4_exp"), QWEN_IMAGES),
    "smolvlm": {"image_processor_type": "SmolVLMImageProcessor", **SMOL_IMAGES},
    "idefics3": {"image_processor_type": "Idefics3ImageProcessor", **SMOL_IMAGES},
    "gemma3": {"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 32, "width": 32}},
    "gemma4": GEMMA4_IMAGES,
    "gemma4_unified": GEMMA4_IMAGES,
    "pixtral": PIXTRAL_IMAGES,
    "mistral3": PIXTRAL_IMAGES,
    "llava": {"image_processor_type": "CLIPImageProcessor", **CLIP_IMAGES},
    "llava_next": {
        "image_processor_type": "LlavaNextImageProcessor",
        **CLIP_IMAGES,
        "image_grid_pinpoints": [[32, 64], [64, 32], [64, 64], [96, 32], [32, 96]],
    },
    "internvl_chat": {"image_processor_type": "CLIPFeatureExtractor", "crop_size": 32},
    "lfm2_vl": {
        "image_processor_type": "Lfm2VlImageProcessorFast",
        "encoder_patch_size": 4,
        "downsample_factor": 2,
        "min_image_tokens": 4,
        "max_image_tokens": 16,
        "tile_size": 32,
    },
    "internvl": {
        "image_processor_type": "GotOcr2ImageProcessorFast",
        "size": {"height": 32, "width": 32},
        "max_patches": 4,
    },
}
MARKERS: Final = {
    **dict.fromkeys(
        (*QWENS, "mimo_v2", "qwen4_exp"), "<|vision_start|><|image_pad|><|vision_end|>"
    ),
    **dict.fromkeys(("smolvlm", "idefics3", "llava", "llava_next", "lfm2_vl"), "<image>"),
    "internvl_chat": "<image>",
    **dict.fromkeys(("pixtral", "mistral3"), "[IMG]"),
    "ernie4_5_moe_vl": "<|vision_start|><|image@placeholder|><|vision_end|>",
    "inkling": "<|unused_200054|>",
    "step3p7": "<im_patch>",
    **dict.fromkeys(("glm5_next", "gemma4", "gemma4_unified"), "<|image|>"),
    "gemma3": "<start_of_image>",
    "internvl": "<IMG_CONTEXT>",
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
    whole.eval()  # some towers drop layers at random otherwise
    randomise(whole, seed)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(whole.parameters())))
    return whole


def build(config: Mapping[str, Any]) -> Any:
    """Return mlx-vlm's model of a config, as its own loader builds it."""
    utils = import_module("mlx_vlm.utils")
    module, _ = utils.get_model_and_args(config=dict(config))
    text = config.get("llm_config", {})
    parts = json.loads(json.dumps({"text_config": text, "audio_config": {}, **config}))
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
    settings["chat_template"] = showing(settings["chat_template"], marker)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


PART: Final = "{{- part if part is string else part.text -}}"
"""How the demo's template writes a part of a message."""


def showing(template: str, marker: str) -> str:
    """The demo's template, with markers in place of images."""
    shown = f"{{%- if part.type == 'image' -%}}{marker}{{%- else -%}}{PART}{{%- endif -%}}"
    assert PART in template
    return template.replace(PART, shown)


def randomise(model: Any, seed: int) -> None:
    """Draw weights whose outputs neither vanish nor grow."""
    flat = tree_flatten(model.parameters())
    keys = mx.random.split(mx.random.key(seed), len(flat))
    drawn = []
    for (name, weight), key in zip(flat, keys, strict=True):
        if not weight.ndim or not mx.issubdtype(weight.dtype, mx.floating):
            continue
        noise = mx.random.normal(weight.shape, key=key)
        if weight.ndim == 1:
            drawn.append((name, weight + 0.1 * noise))
        else:
            inputs = weight.size // weight.shape[0]
            drawn.append((name, noise * inputs**-0.5))
    model.load_weights(drawn, strict=False)
    mx.eval(model.parameters())
