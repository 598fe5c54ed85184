"""Choice of the library with a model's classes, by config and installed packages.

Shared by catalog, compatibility, hub search and loading. Reads sources and imports no library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from typing import Any, Final

from omlx.errors import Reason
from omlx.models.library.rope import INNER_CONFIGS, rope_reason
from omlx.models.library.sources import module_of

ENCODERS: Final = {"bert": "bert", "modernbert": "modernbert", "xlm-roberta": "xlm_roberta"}
"""mlx-vlm's encoder modules, by `model_type`."""
EXTRA: Final = "omlx[encoders]"
WRAPPERS: Final = frozenset(
    {"idefics3", "smolvlm", "lfm2_vl", "llava_next", "internvl", "internvl_chat"}
)
"""Values of `model_type` from which only the text model is loaded, by mlx-lm."""
_CLASSIFIER: Final = "ForSequenceClassification"
_FIXED: Final = {
    "hidden_act": "gelu",
    "hidden_activation": "gelu",
    "position_embedding_type": "absolute",
}
"""Encoder config keys ignored by mlx-vlm, with the value hard-coded there."""


class Library(StrEnum):
    MLX_LM = "mlx-lm"
    MLX_VLM = "mlx-vlm"
    OWN = "own code"
    """Code in the model's folder, run by mlx-lm if trusted."""


@dataclass(frozen=True, slots=True)
class Classes:
    """Library of a model; `text` is the config of a text model loaded without its wrapper."""

    library: Library
    text: Mapping[str, Any] | None = None


def choose(config: Mapping[str, Any], *, trusted: bool = False) -> Classes | Reason:
    """Return the library with a model's classes, or the reason why none has them.

    `trusted`: code in the model's folder may run.
    """
    if config.get("model_file") is not None:
        remote = Reason("model.remote_code", {"file": str(config["model_file"])})
        return Classes(Library.OWN) if trusted else remote
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        return Reason("model.no_type")
    if is_encoder(config):
        return _encoder_reason(config) or Classes(Library.MLX_VLM)
    text = wrapped_text(config)
    if module_of(model_type if text is None else text["model_type"]) is None:
        return Reason("model.unsupported", {"model_type": model_type})
    return rope_reason(config) or Classes(Library.MLX_LM, text)


def wrapped_text(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the config of a text model to unwrap; None for other models."""
    if config.get("model_type") not in WRAPPERS:
        return None
    inner = next((config[key] for key in INNER_CONFIGS if config.get(key)), None)
    if not isinstance(inner, Mapping) or "model_type" not in inner:
        return None
    shared = {key: config[key] for key in ("tie_word_embeddings",) if key in config}
    return {**inner, **shared}


def is_encoder(config: Mapping[str, Any]) -> bool:
    return str(config.get("model_type")) in ENCODERS


def is_classifier(config: Mapping[str, Any]) -> bool:
    """Return whether a model is an encoder with a head that scores texts."""
    architectures = config.get("architectures")
    if not is_encoder(config) or not isinstance(architectures, list):
        return False
    return any(str(name).endswith(_CLASSIFIER) for name in architectures)


def _encoder_reason(config: Mapping[str, Any]) -> Reason | None:
    if find_spec("mlx_vlm") is None:
        params = {"model_type": str(config["model_type"]), "extra": EXTRA}
        return Reason("model.encoder_extra", {**params})
    for key, value in _FIXED.items():
        if config.get(key, value) != value:
            return Reason("model.encoder_config", {"key": key, "value": str(config[key])})
    labels = config.get("id2label")
    if is_classifier(config) and isinstance(labels, dict) and len(labels) != 1:
        return Reason("model.encoder_config", {"key": "id2label", "value": str(len(labels))})
    return None
