"""Tiny configurations of mlx-vlm's text models, by name in the table of model support."""

from __future__ import annotations

from typing import Any

from tests.zoo.family import SMALL
from tests.zoo.shared import SHARED

SLIDING = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"] * 2}
MLA = {"num_key_value_heads": 4, "kv_lora_rank": 32, "q_lora_rank": 32, "n_group": 1}
INDEX = {"index_n_heads": 16}  # of few heads ReLU makes equal scores, and top-k is arbitrary
ROPE = {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}}
STREAMS = {"hc_mult": 2, "hc_sinkhorn_iters": 4}
TOWER = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2}
MROPE = {
    "rope_parameters": {
        "type": "default",
        "mrope_section": [2, 1, 1],
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
    }
}
SPARSE = {
    "sparse_attention_config": {
        "use_sparse_attention": True,
        "sparse_attention_freq": [0, 0, 1, 1],
        "sparse_index_dim": 16,
        "sparse_num_index_heads": 4,
        "sparse_topk_blocks": 2,
        "sparse_block_size": 4,
        "sparse_score_type": "max",
        "sparse_init_block": 0,
        "sparse_local_block": 1,
    }
}


def _flat(model_type: str, **more: Any) -> dict[str, Any]:
    base = {**SMALL, **SHARED, "num_hidden_layers": 4, "routed_scaling_factor": 1.0}
    del base["layer_types"]  # of three layers
    return {**base, "model_type": model_type, **more}


def _nested(
    model_type: str, text: dict[str, Any], vision: dict[str, Any], **more: Any
) -> dict[str, Any]:
    sizes = {key: SMALL[key] for key in ("vocab_size", "hidden_size")}
    tower = {"model_type": model_type, **vision}
    return {"model_type": model_type, "text_config": text, "vision_config": tower, **sizes, **more}


CONFIGS: dict[str, dict[str, Any]] = {
    "cohere2_moe": _flat(
        "cohere2_moe",
        moe_num_shared_experts=1,
        prefix_dense_intermediate_size=96,
        first_k_dense_replace=1,
        sliding_window=16,
        sliding_window_pattern=2,
    ),
    "deepseek_v4": _flat(
        "deepseek_v4",
        **STREAMS,
        **INDEX,
        num_key_value_heads=1,
        head_dim=32,
        q_lora_rank=32,
        index_topk=4,
        o_groups=2,
        o_lora_rank=16,
        num_hash_layers=1,
        scoring_func="sqrtsoftplus",
        compress_ratios=[0, 4, 128, 0],
    ),
    "ernie4_5_moe_vl": _flat(
        "ernie4_5_moe_vl",
        moe_num_experts=[4, 4],
        moe_layer_start_index=[1, 1],
        moe_layer_end_index=[3, 3],
        moe_intermediate_size=[32, 32],
        moe_k=2,
        mrope_section=[3, 3, 2],
        freq_allocation=2,
        pixel_hidden_size=32,
        vision_config={**TOWER, "embed_dim": 32},
    ),
    "flint": _flat("flint", **{**SLIDING, "sliding_window": 17}, no_rope_layer_indices=[1]),
    "glm5_next": _nested(
        "glm5_next",
        _flat(
            "glm5_next_text",
            **MLA,
            **INDEX,
            **STREAMS,
            qk_rope_head_dim=0,
            linear_head_dim=32,
            linear_num_heads=2,
            index_kpool=4,
            layer_types=["linear_attention", "deepseek_sparse_attention"] * 2,
            indexer_types=["full", "full", "full", "shared"],
        ),
        {**TOWER, "out_hidden_size": 64, "projection_intermediate_size": 32},
    ),
    "glm_moe_dsa_shared": _flat(
        "glm_moe_dsa", **MLA, **INDEX, **ROPE, indexer_types=["full", "shared", "full", "shared"]
    ),
    "inkling": _nested(
        "inkling",
        _flat(
            "inkling",
            swa_num_attention_heads=4,
            swa_num_key_value_heads=2,
            swa_head_dim=16,
            sliding_window_size=16,
            d_rel=4,
            rel_extent=32,
            dense_mlp_idx=1,
            intermediate_size=32,
            dense_intermediate_size=96,
            local_layer_ids=[0, 2],
            log_scaling_n_floor=8,
        ),
        {"n_layers": 1},
    ),
    "k2_horizon": _flat("k2_horizon"),
    "kolibri1": _flat("kolibri1", **SLIDING),
    "longcat_flash_sparse": _flat(
        "longcat_flash_sparse",
        **MLA,
        **INDEX,
        num_layers=2,
        ffn_hidden_size=96,
        expert_ffn_hidden_size=32,
        moe_topk=2,
        zero_expert_num=2,
        index_local_tokens=2,
        index_init_tokens=1,
    ),
    "mimo_v2": _flat(
        "mimo_v2",
        v_head_dim=8,
        swa_head_dim=16,
        swa_v_head_dim=8,
        swa_num_attention_heads=4,
        swa_num_key_value_heads=2,
        swa_rope_theta=10000.0,
        sliding_window_size=16,
        hybrid_layer_pattern=[0, 1, 1, 0],
        moe_layer_freq=[0, 1, 1, 1],
        n_group=1,
        vision_config={
            **TOWER,
            "out_hidden_size": 64,
            "num_key_value_heads": 2,
            "qk_channels": 16,
            "fullatt_block_indexes": [0],
            "vit_window_attn_types": [-1],
        },
        audio_config={
            "input_local_layers": 1,
            "input_local_dim": 32,
            "input_local_attn_heads": 2,
            "input_local_head_dim": 16,
            "input_local_intermediate_size": 32,
            "out_hidden_size": 64,
            "audio_channels": 2,
        },
    ),
    "minimax_m3": _flat(
        "minimax_m3",
        **SPARSE,
        dense_intermediate_size=96,
        shared_intermediate_size=96,
        rotary_dim=8,
        moe_layer_freq=[0, 1, 1, 1],
    ),
    "mistral_large3": _nested(
        "mistral_large3",
        _flat("mistral_large3", **MLA),
        {
            "model_type": "pixtral",
            "num_hidden_layers": 1,
            "hidden_size": 32,
            "head_dim": 16,
            "intermediate_size": 32,
            "num_attention_heads": 2,
        },
    ),
    "qwen4_exp": _nested(
        "qwen4_exp",
        _flat(
            "qwen4_exp_text",
            **MROPE,
            linear_key_head_dim=32,
            linear_value_head_dim=32,
            hc_count=2,
            hc_lowrank=8,
            indexer_n_heads=16,
            indexer_kv_heads=1,
            indexer_head_dim=16,
            indexer_budget=16,
            indexer_compress_ratio=4,
            eos_token_id=[95],
            ple_layer_ids=[1],
            ple_embed_dim=16,
            heads_per_ngram=2,
            ngram_vocab_size_base=64,
            make_ngram_vocab_size_divisible_by=4,
            split_ngram_parts=2,
        ),
        {
            **TOWER,
            "out_hidden_size": 64,
            "num_position_embeddings": 16,
            "deepstack_visual_indexes": [],
            "fullatt_block_indexes": [0],
        },
    ),
    "step3p7": _nested(
        "step3p7",
        _flat(
            "step3p5",
            **SLIDING,
            num_attention_groups=2,
            moe_num_experts=4,
            moe_top_k=2,
            share_expert_dim=32,
            moe_layers_enum=[1, 2, 3],
            partial_rotary_factors=[0.5, 1.0] * 2,
            use_head_wise_attn_gate=True,
            attention_other_setting={
                "attention_type": "sliding_attention",
                "num_attention_heads": 4,
                "num_attention_groups": 2,
                "head_dim": 16,
            },
        ),
        {"width": 32, "layers": 1, "heads": 2, "image_size": 28, "mlp_ratio": 1.0},
    ),
    "xing4_0": _flat("xing4_0", **MLA, **STREAMS),
}
