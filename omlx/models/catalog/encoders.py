"""Encoders: models that read a text in both directions and generate none, such as BERT.

mlx-lm has none of them, mlx-vlm has those of three architectures.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from omlx.errors import Reason
from omlx.models.catalog.context import declared_context
from omlx.models.catalog.model_config import read_config

ENCODERS: Final = {"bert": "bert", "modernbert": "modernbert", "xlm-roberta": "xlm_roberta"}
"""Names of mlx-vlm's modules, by `model_type`."""
EXTRA: Final = "omlx[encoders]"
_PACKAGE: Final = "mlx_vlm"
_CLASSIFIER: Final = "ForSequenceClassification"
_FIXED: Final = {
    "hidden_act": "gelu",
    "hidden_activation": "gelu",
    "position_embedding_type": "absolute",
}
"""Keys of configs which mlx-vlm does not read, with the value that it computes."""


def is_encoder(config: Mapping[str, Any]) -> bool:
    return str(config.get("model_type")) in ENCODERS


def is_classifier(config: Mapping[str, Any]) -> bool:
    """Return whether a config is that of an encoder with a head that scores a text or a pair."""
    architectures = config.get("architectures")
    if not is_encoder(config) or not isinstance(architectures, list):
        return False
    return any(str(name).endswith(_CLASSIFIER) for name in architectures)


def encoder_reason(config: Mapping[str, Any]) -> Reason | None:
    """Return why an encoder cannot be loaded; None if it can."""
    if find_spec(_PACKAGE) is None:
        model_type = str(config["model_type"])
        return Reason("model.encoder_extra", {"model_type": model_type, "extra": EXTRA})
    for key, value in _FIXED.items():
        if config.get(key, value) != value:
            return Reason("model.encoder_config", {"key": key, "value": str(config[key])})
    labels = config.get("id2label")
    if is_classifier(config) and isinstance(labels, dict) and len(labels) != 1:
        return Reason("model.encoder_config", {"key": "id2label", "value": str(len(labels))})
    return None


def encoder_window(directory: Path, config: Mapping[str, Any]) -> int | None:
    """Return the tokens that an encoder reads at most, None if it does not say.

    XLM-R counts positions from behind that of padding. sentence-transformers may declare fewer
    tokens than there are positions. Raises ModelError.
    """
    length = declared_context(config)
    if length is not None and config.get("model_type") == "xlm-roberta":
        padding = config.get("pad_token_id")
        length -= 1 + (padding if isinstance(padding, int) else 1)
    declared = read_config(directory, "sentence_bert_config.json").get("max_seq_length")
    lengths = [one for one in (length, declared) if isinstance(one, int) and one > 0]
    return min(lengths, default=None)
