"""Whether a model that is not here yet would fit: the KV cache that its config promises.

Once a model is loaded its cache is measured; this is an estimate by the config's fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from omlx.engine.memory.guard import HARD
from omlx.engine.piece import Layout
from omlx.models.catalog.model_config import text_config

CONTEXTS: Final = (65_536, 32_768, 16_384, 8_192, 4_096)
"""Tokens of the contexts that are tried, the longest first."""

COMFORTABLE: Final = 16_384
"""Tokens from which a context is of use for long conversations and agents."""

_VALUE_BYTES: Final = 2
"""Of a number in a KV cache: bfloat16 or float16."""
_SLIDING: Final = ("sliding_attention", "sliding_window", "chunked_attention")
_RECURRENT: Final = ("linear_attention", "conv", "recurrent", "mamba")


@dataclass(frozen=True, slots=True)
class Fit:
    """The longest context of `CONTEXTS`, in tokens, that fits, and the memory left beside it.

    `context` is None if the weights or the shortest context do not fit; `comfortable` says that it
    is the model's own, or long enough.
    """

    context: int | None
    left_bytes: int = 0
    comfortable: bool = False


def fit(weight_bytes: int, layout: Layout, longest: int | None, limit_bytes: int) -> Fit:
    """Return what fits below the hard limit of requests. `longest` is the model's own context."""
    for tokens in CONTEXTS:
        context = min(tokens, longest or tokens)
        need = weight_bytes + layout.cache_bytes(context)
        if need <= HARD * limit_bytes:
            return Fit(context, limit_bytes - need, context >= min(COMFORTABLE, longest or tokens))
    return Fit(None)


def layout_of_config(config: Mapping[str, Any]) -> Layout:
    """Estimate the bytes of a KV cache by the fields that most architectures share.

    A recurrent state is small beside the rows, and left out. Fields that are missing or of another
    type count as none.
    """
    text = text_config(config) or config
    layers = _number(text, "num_hidden_layers") or _number(text, "n_layer")
    row = _row_bytes(text)
    kinds = _kinds(text, layers)
    window = _number(text, "sliding_window") or None
    sliding = sum(kind in _SLIDING for kind in kinds)
    recurrent = sum(kind in _RECURRENT for kind in kinds)
    if window is None:
        sliding = 0
    return Layout((layers - sliding - recurrent) * row, sliding * row, window)


def _row_bytes(text: Mapping[str, Any]) -> int:
    """Bytes of one token in one attention layer."""
    rank = _number(text, "kv_lora_rank")
    if rank:  # multi-head latent attention keeps one compressed vector
        return _VALUE_BYTES * (rank + _number(text, "qk_rope_head_dim"))
    queries = _number(text, "num_attention_heads") or _number(text, "n_head")
    heads = _number(text, "num_key_value_heads") or queries
    width = _number(text, "hidden_size") or _number(text, "n_embd")
    dim = _number(text, "head_dim") or width // max(1, queries)
    return 2 * _VALUE_BYTES * heads * dim


def _kinds(text: Mapping[str, Any], layers: int) -> list[str]:
    """Return the kind of each layer, as far as the config names it."""
    named = text.get("layer_types")
    if isinstance(named, list):
        return [str(kind) for kind in named[:layers]]
    interval = _number(text, "full_attention_interval")
    if interval:
        return _every(interval, layers, "linear_attention")
    pattern = _number(text, "sliding_window_pattern") or _number(text, "_sliding_window_pattern")
    if pattern:
        return _every(pattern, layers, "sliding_attention")
    return []


def _every(interval: int, layers: int, others: str) -> list[str]:
    """Every `interval`-th layer attends to everything."""
    return ["full_attention" if n % interval == 0 else others for n in range(1, layers + 1)]


def _number(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    return value if isinstance(value, int) and value > 0 else 0
