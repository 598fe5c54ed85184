"""The model's configs: reading them, stop tokens and sampling defaults."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from omlx.engine.prefill import PassShape
from omlx.errors import ModelError

Number = int | float

MAX_CONFIG_BYTES: Final = 16 << 20
"""A config with settings for each of thousands of layers has less than 1 MB."""
MAX_INDEX_BYTES: Final = 64 << 20
"""An index names each tensor: about 10 MB for 100,000 of them."""

_HEAD_KEYS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_HIDDEN_KEYS = ("hidden_size", "n_embd", "d_model", "model_dim")
_INNER_KEYS = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "d_ff")
_STOP_KEYS = ("eos_token_id", "eos_token_ids")
_SAMPLING: dict[str, type[int] | type[float]] = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "repetition_penalty": float,
}


def read_config(directory: Path, name: str) -> dict[str, Any]:
    """Return the JSON object in `directory/name`, empty without a file. Raises ModelError for other
    content.
    """
    path = directory / name
    try:
        return read_object(path) if path.is_file() else {}
    except (OSError, ValueError) as error:
        raise ModelError("model.config_unreadable", file=name, detail=str(error)) from None


def read_object(path: Path, max_bytes: int = MAX_CONFIG_BYTES) -> dict[str, Any]:
    """Return the JSON object in a file. Raises OSError, and ValueError for other content."""
    if path.stat().st_size > max_bytes:
        raise ValueError(f"larger than {max_bytes >> 20} MB")
    return json_object(path.read_text(encoding="utf-8"))


def json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object. Raises ValueError for other JSON and for strings that are not Unicode
    text.
    """
    try:
        content = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(content, dict):
        raise ValueError("not a JSON object")
    json.dumps(content, ensure_ascii=False).encode()  # raises for half of a surrogate pair
    return content


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the language model's part of a multimodal config, else an empty one."""
    part = config.get("text_config")
    return part if isinstance(part, Mapping) else {}


def stop_tokens(*configs: Mapping[str, Any]) -> set[int | str]:
    """Return the stop tokens that configs name, by id or by text.

    Some have one, others a list; some tools write it under the plural.
    """
    stops: set[int | str] = set()
    for config in configs:
        for part in (config, text_config(config)):
            for key in _STOP_KEYS:
                value = part.get(key)
                listed = value if isinstance(value, list) else [value]
                stops |= {token for token in listed if type(token) is int or type(token) is str}
    return stops


def sampling_defaults(generation_config: Mapping[str, Any]) -> dict[str, Number]:
    """Return the sampling parameters by our names; `do_sample: false` is temperature 0."""
    defaults: dict[str, Number] = {}
    for name, kind in _SAMPLING.items():
        value = generation_config.get(name)
        if isinstance(value, int | float):
            defaults[name] = kind(value)
    if generation_config.get("do_sample") is False:
        defaults["temperature"] = 0.0
    return defaults


def pass_shape(config: Mapping[str, Any], itemsize: int) -> PassShape | None:
    """Return the heads and widths of a model that computes in floats of `itemsize` bytes, its text
    part's; None if the config does not give them.
    """
    part = text_config(config) or config
    heads, hidden = _count(part, *_HEAD_KEYS), _count(part, *_HIDDEN_KEYS)
    if not heads or not hidden:
        return None
    own = _count(part, "head_dim") or hidden // heads
    latent = _count(part, "qk_nope_head_dim") + _count(part, "qk_rope_head_dim")
    dim = max(own, _count(part, "global_head_dim"), latent)
    experts = _count(part, "num_experts_per_tok", "top_k_experts", "moe_topk")
    expert = _count(part, "moe_intermediate_size", "intermediate_size")
    inner = max(_count(part, *_INNER_KEYS) or 4 * hidden, experts * expert)
    return PassShape(
        query_heads=heads,
        kv_heads=_count(part, "num_key_value_heads", "n_kv_heads") or heads,
        head_dim=dim,
        value_dim=_count(part, "v_head_dim") or dim,
        token_floats=max(hidden, heads * dim) + inner,
        itemsize=itemsize,
    )


def _count(config: Mapping[str, Any], *keys: str) -> int:
    """Return the first positive whole number under these keys, of a list the largest; else 0."""
    for key in keys:
        value = config.get(key)
        numbers = value if isinstance(value, list) else [value]
        known = [n for n in numbers if isinstance(n, int) and not isinstance(n, bool) and n > 0]
        if known:
            return max(known)
    return 0
