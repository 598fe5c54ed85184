"""Context length of a config, in tokens: what the model was made for, and what it allows.

YaRN lengthens what a config declares, as model cards advise to write it. Other scalings are
declared with the length that they reach, or do not say: there a user may ask for more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from omlx.models.catalog.model_config import Number, text_config
from omlx.models.catalog.rope import ORIGINAL, kind_of_scaling, scaling_of

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
"""Tokenizers without a limit report 10^30."""
_YARN: Final = frozenset({"yarn", "deepseek_yarn", "telechat3-yarn"})
_STRETCHED: Final = _YARN | {"linear", "llama3", "longrope", "su"}
"""Scalings that serve `factor` times the original length. Dynamic scaling is none of them: it turns
the same token differently in passes of different width."""


def declared_context(config: Mapping[str, Any]) -> int | None:
    """Return the context length that a config declares, None if it does not."""
    length, reached, kind = _lengths(config)
    if length is None or kind not in _YARN:
        return length
    return max(length, reached)


def context_length(config: Mapping[str, Any], tokenizer_length: Number) -> int:
    """Return the longest context that the model was made for."""
    declared = declared_context(config)
    if declared is not None:
        return declared
    if 0 < tokenizer_length < _MAX:
        return int(tokenizer_length)
    return _DEFAULT


def longest_context(config: Mapping[str, Any], tokenizer_length: Number) -> int:
    """Return the longest context that a user may ask for: what the scaling of positions allows."""
    _, reached, _ = _lengths(config)
    return max(context_length(config, tokenizer_length), reached)


def _lengths(config: Mapping[str, Any]) -> tuple[int | None, int, str]:
    """Return the length that is written down, the one that scaling reaches (0: no more), its type.

    A factor without the original length applies to the one that is written down.
    """
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
