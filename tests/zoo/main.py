"""Families of the exactness tests: one per kind of cache."""

from __future__ import annotations

from typing import Any

from tests.zoo.family import SMALL, Family
from tests.zoo.shared import SHARED

WINDOW = 16
CHUNK = 16


def shared(names: str) -> dict[str, Any]:
    return {name: SHARED[name] for name in names.split()}


GEMMA3 = {"sliding_window": WINDOW, "sliding_window_pattern": 2, "query_pre_attn_scalar": 16}
LLAMA4 = {
    "attention_chunk_size": CHUNK,
    "interleave_moe_layer_step": 2,
    "intermediate_size_mlp": 96,
    "num_experts_per_tok": 1,
    "num_hidden_layers": 4,
    "num_local_experts": 2,
    "rope_scaling": None,
    "use_qk_norm": True,
}

MAIN = (
    Family("llama", {}, {"attention"}),
    Family("llama_quantized", {"head_dim": 32}, {"attention", "quantized_kv"}, module="llama"),
    Family("llama_concatenate", {}, {"attention", "concatenate"}, module="llama"),
    Family("gemma3_text", GEMMA3, {"attention", "sliding"}),
    Family(
        "gpt_oss",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": WINDOW,
            "rope_scaling": {"rope_type": "default"},
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
        {"attention", "sliding"},
    ),
    Family(
        "qwen3_next",
        {
            **shared("linear_num_value_heads linear_num_key_heads linear_key_head_dim"),
            **shared("linear_value_head_dim linear_conv_kernel_dim full_attention_interval"),
            **shared("num_experts num_experts_per_tok mlp_only_layers moe_intermediate_size"),
            **shared("shared_expert_intermediate_size partial_rotary_factor"),
            "decoder_sparse_step": 2,
        },
        {"attention", "recurrent"},
    ),
    Family(
        "nemotron_h",
        {
            "mamba_num_heads": 4,
            "mamba_head_dim": 16,
            "mamba_proj_bias": False,
            "ssm_state_size": 16,
            "conv_kernel": 4,
            "n_groups": 2,
            "use_bias": False,
            "use_conv_bias": True,
            "hybrid_override_pattern": ["M", "*", "-", "M"],
        },
        {"attention", "recurrent"},
    ),
    Family(
        "falcon_h1",
        {
            "mamba_d_head": 16,
            "mamba_d_ssm": 64,
            "mamba_d_state": 16,
            "mamba_n_heads": 4,
            "mamba_chunk_size": 16,
            "num_hidden_layers": 2,
        },
        {"attention", "recurrent", "list"},
    ),
    Family(
        "lfm2",
        {
            "conv_bias": True,
            "conv_L_cache": 3,
            "block_dim": 64,
            "block_ff_dim": 96,
            "block_multiple_of": 16,
            "block_ffn_dim_multiplier": 1.0,
            "block_auto_adjust_ff_dim": False,
            "layer_types": ["conv", "full_attention", "conv"],
        },
        {"attention", "recurrent"},
    ),
    Family(
        "recurrent_gemma",
        {
            "conv1d_width": 4,
            "logits_soft_cap": 60.0,
            "attention_window_size": WINDOW,
            "num_key_value_heads": 1,
            "block_types": ["recurrent", "attention"],
        },
        {"attention", "sliding", "recurrent"},
    ),
    Family(
        "llama4",
        {"text_config": {**SMALL, **LLAMA4, "model_type": "llama4_text"}},
        {"attention", "chunked", "wrapper"},
    ),
    Family(
        "deepseek_v3",
        {
            **shared("moe_intermediate_size n_shared_experts n_routed_experts num_experts_per_tok"),
            **shared("n_group topk_group first_k_dense_replace kv_lora_rank q_lora_rank"),
            **shared("qk_rope_head_dim qk_nope_head_dim v_head_dim"),
            "num_key_value_heads": 4,
        },
        {"attention", "mla"},
    ),
    Family(
        "gemma3",
        {"text_config": {**SMALL, **GEMMA3, "model_type": "gemma3_text"}},
        {"attention", "sliding", "wrapper"},
    ),
    Family("qwen2_vl", {"text_config": {**SMALL, "model_type": "qwen2"}}, {"attention", "wrapper"}),
)
