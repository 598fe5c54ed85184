"""Facts of a config: stop tokens, sampling, shapes, context length, layer counts.

Context lengths are in tokens. Declared lengths exclude YaRN's factor, as model cards advise. Other
scalings declare the scaled length, or leave it open: then a user may ask for more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from omlx.engine.step.prefill import PassShape
from omlx.errors import ModelError
from omlx.models.catalog.files import ModelFiles
from omlx.models.library.rope import ORIGINAL, kind_of_scaling, scaling_of

Number = int | float

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


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the language model's part of a multimodal config; empty without one."""
    part = config.get("text_config")
    return part if isinstance(part, Mapping) else {}


def stop_tokens(*configs: Mapping[str, Any]) -> set[int | str]:
    """Return the stop tokens of configs, by id or by text.

    Configs give a token or a list; some tools use the plural key.
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
    """Return sampling parameters by our names; `do_sample: false` is temperature 0."""
    defaults: dict[str, Number] = {}
    for name, kind in _SAMPLING.items():
        value = generation_config.get(name)
        if isinstance(value, int | float):
            defaults[name] = kind(value)
    if generation_config.get("do_sample") is False:
        defaults["temperature"] = 0.0
    return defaults


def pass_shape(config: Mapping[str, Any], itemsize: int) -> PassShape | None:
    """Return heads and widths of the text model; None if missing from the config.

    `itemsize` is the size of a float in bytes.
    """
    part = text_config(config) or config
    heads, hidden = whole_number(part, *_HEAD_KEYS), whole_number(part, *_HIDDEN_KEYS)
    if not heads or not hidden:
        return None
    own = whole_number(part, "head_dim") or hidden // heads
    latent = whole_number(part, "qk_nope_head_dim") + whole_number(part, "qk_rope_head_dim")
    dim = max(own, whole_number(part, "global_head_dim"), latent)
    experts = whole_number(part, "num_experts_per_tok", "top_k_experts", "moe_topk")
    expert = whole_number(part, "moe_intermediate_size", "intermediate_size")
    inner = max(whole_number(part, *_INNER_KEYS) or 4 * hidden, experts * expert)
    return PassShape(
        query_heads=heads,
        kv_heads=whole_number(part, "num_key_value_heads", "n_kv_heads") or heads,
        head_dim=dim,
        value_dim=whole_number(part, "v_head_dim") or dim,
        token_floats=max(hidden, heads * dim) + inner,
        itemsize=itemsize,
    )


def whole_number(config: Mapping[str, Any], *keys: str) -> int:
    """Return the first positive whole number under `keys` (the largest of a list), else 0."""
    for key in keys:
        value = config.get(key)
        numbers = value if isinstance(value, list) else [value]
        known = [n for n in numbers if isinstance(n, int) and not isinstance(n, bool) and n > 0]
        if known:
            return max(known)
    return 0


_KEYS: Final = (
    "max_position_embeddings",
    "n_positions",
    "n_ctx",
    "max_seq_len",
    "max_sequence_length",
    "seq_length",
)
_DEFAULT: Final = 32_768
_MAX: Final = 1 << 24
"""Tokens — larger limits are placeholders: tokenizers without a limit report 10^30."""
_YARN: Final = frozenset({"yarn", "deepseek_yarn", "telechat3-yarn"})
_STRETCHED: Final = _YARN | {"linear", "llama3", "longrope", "su"}
"""Scalings to `factor` times the original length.

Dynamic scaling is excluded: the rotation of a token depends on the width of the pass.
"""


def declared_context(config: Mapping[str, Any]) -> int | None:
    """Return the context length declared by a config, with YaRN applied; None if undeclared."""
    length, reached, kind = _lengths(config)
    if length is None or kind not in _YARN:
        return length
    return max(length, reached)


def context_length(config: Mapping[str, Any], tokenizer_length: Number) -> int:
    declared = declared_context(config)
    if declared is not None:
        return declared
    if 0 < tokenizer_length < _MAX:
        return int(tokenizer_length)
    return _DEFAULT


def longest_context(config: Mapping[str, Any], tokenizer_length: Number) -> int:
    """Return the longest context a user may request, as far as position scaling reaches."""
    _, reached, _ = _lengths(config)
    return max(context_length(config, tokenizer_length), reached)


def _lengths(config: Mapping[str, Any]) -> tuple[int | None, int, str]:
    """Return declared length (None: missing), scaled length (0: unscaled) and scaling type."""
    for part in (config, text_config(config)):
        length = next((part[key] for key in _KEYS if _is_length(part.get(key))), None)
        if length is None:
            continue
        scaling = scaling_of(part)
        kind, factor = kind_of_scaling(scaling), scaling.get("factor")
        original = scaling.get(ORIGINAL) or part.get(ORIGINAL) or length
        valid = isinstance(factor, int | float) and 1 < factor < _MAX and _is_length(original)
        reached = round(factor * original) if valid and kind in _STRETCHED else 0
        return length, min(reached, _MAX), kind
    return None, 0, ""


def _is_length(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


MIN_COUNT: Final = 256
"""Modules — always allowed: cheap to build, even if the weights do not match."""

_COUNTS: Final = re.compile(r"n(um)?_(\w+_)?(layers?|loops)|altup_num_inputs")
"""Keys that count modules with weights."""


def check_counts(config: Mapping[str, Any], tensors: int) -> None:
    """Raise ModelError for a config with more layers than the weights have tensors.

    Building a model takes time and memory for each module, and cannot be interrupted.
    """
    most = max(tensors, MIN_COUNT)
    for key, value in _fields(config):
        if isinstance(value, int) and value > most and _COUNTS.fullmatch(key):
            raise ModelError("model.config_counts", key=key, value=value, tensors=tensors)


def _fields(config: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield every key and value of a config, nested objects included."""
    pending: list[Mapping[str, Any]] = [config]
    while pending:
        for key, value in pending.pop().items():
            yield key, value
            if isinstance(value, Mapping):
                pending.append(value)


def encoder_window(files: ModelFiles) -> int | None:
    """Return the maximum number of tokens an encoder reads; None if undeclared.

    Raises ModelError.
    """
    config = files.config
    length = declared_context(config)
    # XLM-R numbers positions from padding + 1 on.
    if length is not None and config.get("model_type") == "xlm-roberta":
        padding = config.get("pad_token_id")
        length -= 1 + (padding if isinstance(padding, int) else 1)
    # sentence-transformers may declare fewer tokens than there are positions.
    declared = files.json("sentence_bert_config.json").get("max_seq_length")
    lengths = [one for one in (length, declared) if isinstance(one, int) and one > 0]
    return min(lengths, default=None)
