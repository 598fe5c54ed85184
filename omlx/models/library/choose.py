"""Choice of the library with a model's classes, by config and installed packages.

Shared by catalog, compatibility, hub search and loading. Reads sources and imports no library.
mlx-lm goes first; mlx-vlm has families of `BORROWED`, which tests prove on tiny models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from omlx.errors import Reason
from omlx.machine import extra_command
from omlx.models.library.rope import INNER_CONFIGS, rope_reason
from omlx.models.library.sources import module_of

ENCODERS: Final = {"bert": "bert", "modernbert": "modernbert", "xlm-roberta": "xlm_roberta"}
"""mlx-vlm's encoder modules, by `model_type`."""
EXTRA: Final = "encoders"
BORROWED_EXTRA: Final = "vision"
_BORROWED: Final = (
    *("cohere2_moe", "deepseek_v4", "ernie4_5_moe_vl", "flint", "glm5_next", "glm_moe_dsa"),
    *("inkling", "k2_horizon", "kolibri1", "longcat_flash_sparse", "mimo_v2", "minimax_m3"),
    *("mistral_large3", "qwen4_exp", "step3p7", "xing4_0"),
)
BORROWED: Final[Mapping[str, str]] = {
    **{name: name for name in _BORROWED},
    "cohere2moe": "cohere2_moe",
    "inkling_mm_model": "inkling",
}
"""mlx-vlm's modules of text models, by `model_type`. tests/zoo proves each."""
NEWER: Final[Mapping[str, Callable[[Mapping[str, Any]], bool]]] = {
    "glm_moe_dsa": lambda config: (
        config.get("index_topk_freq") not in (None, 1)
        or any(config.get(key) for key in ("indexer_types", "index_topk_pattern"))
    ),
}
"""Predicates of configs that mlx-lm's class reads in part only, by `model_type`."""
_INNER: Final[Mapping[str, str]] = {"step3p7": "step3p5"}
"""Text parts whose `model_type` does not begin with the name of their module, by module."""
AUTO: Final = "auto"
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

    @property
    def label(self) -> str:
        """Name with the installed version."""
        package = Library.MLX_LM if self is Library.OWN else self
        return f"{self} {version(package)}"


@dataclass(frozen=True, slots=True)
class Classes:
    """Library of a model; `text` is the config of a text model loaded without its wrapper."""

    library: Library
    text: Mapping[str, Any] | None = None


def choose(
    config: Mapping[str, Any], *, trusted: bool = False, library: str = AUTO
) -> Classes | Reason:
    """Return the library with a model's classes, or the reason why none has them.

    `trusted`: code in the model's folder may run. `library` is the setting, `auto` or a name.
    """
    if config.get("model_file") is not None:
        remote = Reason("model.remote_code", {"file": str(config["model_file"])})
        return Classes(Library.OWN) if trusted else remote
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        return Reason("model.no_type")
    if is_encoder(config):
        return _encoder_reason(config) or Classes(Library.MLX_VLM)
    if _borrows(model_type, config, library):
        return _borrowed(BORROWED.get(model_type, model_type), config, proven=library == AUTO)
    text = wrapped_text(config)
    if module_of(model_type if text is None else text["model_type"]) is None:
        return Reason("model.unsupported", {"model_type": model_type})
    return rope_reason(config) or Classes(Library.MLX_LM, text)


def is_borrowed(config: Mapping[str, Any], library: str = AUTO) -> bool:
    """Return whether a text model's classes are mlx-vlm's."""
    classes = choose(config, library=library)
    return getattr(classes, "library", None) is Library.MLX_VLM and not is_encoder(config)


def _borrows(model_type: str, config: Mapping[str, Any], library: str) -> bool:
    """Return whether mlx-vlm's classes are preferred, or set."""
    if library != AUTO:
        return library == Library.MLX_VLM
    if module_of(model_type) is None:
        return model_type in BORROWED
    return model_type in NEWER and NEWER[model_type](config)


def _borrowed(module: str, config: Mapping[str, Any], *, proven: bool) -> Classes | Reason:
    """Return mlx-vlm, if installed; proven classes have a text part of their own family."""
    part = config.get("text_config")
    inner = str(part.get("model_type", module)) if isinstance(part, Mapping) else module
    alike = inner in (module, _INNER.get(module)) or inner.startswith(f"{module}_")
    if proven and not alike:
        return Reason("model.unsupported", {"model_type": inner})
    spec = find_spec("mlx_vlm")
    folders = (spec.submodule_search_locations if spec is not None else None) or ()
    if any((Path(folder) / "models" / module / "__init__.py").is_file() for folder in folders):
        return Classes(Library.MLX_VLM)
    if module in BORROWED.values() or spec is None:
        command = extra_command(BORROWED_EXTRA)
        return Reason("model.library_extra", {"model_type": module, "command": command})
    return Reason("model.unsupported", {"model_type": module})


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
        model_type, command = str(config["model_type"]), extra_command(EXTRA)
        return Reason("model.encoder_extra", {"model_type": model_type, "command": command})
    for key, value in _FIXED.items():
        if config.get(key, value) != value:
            return Reason("model.encoder_config", {"key": key, "value": str(config[key])})
    labels = config.get("id2label")
    if is_classifier(config) and isinstance(labels, dict) and len(labels) != 1:
        return Reason("model.encoder_config", {"key": "id2label", "value": str(len(labels))})
    return None
