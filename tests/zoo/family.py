"""Model family: an architecture of mlx-lm, a tiny configuration, and tags of its caches."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any

# What nearly every configuration shares. A module reads the keys it knows and ignores the rest.
SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "norm_eps": 1e-5,
    "layer_norm_eps": 1e-5,
    "layer_norm_epsilon": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
}


@dataclass(frozen=True)
class Family:
    """`config` holds what differs from `SMALL`. `module` is the file in mlx_lm.models, the name
    unless given. `seed` and `embed_std` were chosen so that greedy decoding does not fall into a
    cycle at once.

    Tags: attention, sliding, recurrent, chunked, mla, quantized_kv, concatenate, list (CacheList),
    wrapper (a multimodal model serving text).
    """

    name: str
    config: Mapping[str, Any] = field(default_factory=dict)
    tags: AbstractSet[str] = frozenset()
    module: str = ""
    seed: int = 0
    embed_std: float = 1.0


_SHARED = (
    "heads",
    "num_attention_groups",
    "expert_dim",
    "intermediate_size",
    "hidden_size",
    "n_head",
)
"""Endings of the keys of sizes that ranks divide."""


def in_thirds(family: Family) -> Family:
    """Return a family whose numbers of heads and whose widths can be divided by three."""
    return replace(family, config=_in_thirds({**SMALL, **family.config}))


def _in_thirds(config: Mapping[str, Any]) -> dict[str, Any]:
    """Replace 2 or 4 heads by 3 or 6, and widths by half as much more."""
    changed: dict[str, Any] = {}
    for key, value in config.items():
        changed[key] = value
        if isinstance(value, dict):
            changed[key] = _in_thirds(value)
        elif key.endswith(_SHARED) and isinstance(value, int) and value % 3:
            changed[key] = 3 * value // 2
    return changed
