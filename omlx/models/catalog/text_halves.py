"""Vision-language models that mlx-lm does not open, but whose text model it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

WRAPPERS: Final = frozenset(
    {
        *("idefics3", "smolvlm", "lfm2_vl", "llava_next", "internvl", "internvl_chat"),
    }
)
"""Values of `model_type`."""

INNER_CONFIGS: Final = ("text_config", "llm_config")
"""Keys under which a vision-language model has the config of its text model."""


def text_half(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the config of the text model that has to be unwrapped; None for other models."""
    if config.get("model_type") not in WRAPPERS:
        return None
    inner = next((config[key] for key in INNER_CONFIGS if config.get(key)), None)
    if not isinstance(inner, Mapping) or "model_type" not in inner:
        return None
    shared = {key: config[key] for key in ("tie_word_embeddings",) if key in config}
    return {**inner, **shared}
