"""Which eye a model directory has, or why it has none."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from omlx.errors import Reason
from omlx.models.catalog.weight_files import tensor_names, weight_files

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from omlx.models.eyes.family import FamilyEye

FAMILIES: Final = {
    "qwen2_vl": "qwen:Qwen2Eye",
    "qwen2_5_vl": "qwen:Qwen2Eye",
    "qwen3_vl": "qwen:Qwen3Eye",
    "qwen3_vl_moe": "qwen:Qwen3Eye",
    "qwen3_5": "qwen:Qwen35Eye",
    "qwen3_5_moe": "qwen:Qwen35Eye",
    "idefics3": "idefics:IdeficsEye",
    "smolvlm": "idefics:IdeficsEye",
    "gemma3": "gemma:Gemma3Eye",
    "gemma4": "gemma:Gemma4Eye",
    "gemma4_unified": "gemma:Gemma4UnifiedEye",
    "pixtral": "pixtral:PixtralEye",
    "mistral3": "pixtral:Mistral3Eye",
    "llava": "llava:LlavaEye",
    "llava_next": "llava:LlavaNextEye",
    "lfm2_vl": "lfm2:Lfm2Eye",
    "internvl": "intern:InternEye",
    "internvl_chat": "intern:InternChatEye",
}
"""Module and class in `families`, by `model_type`."""

CROSS_ATTENTION: Final = frozenset({"mllama", "florence2"})
"""Families whose layers attend to images instead of reading them as tokens."""

EXTRA: Final = "omlx[vision]"
_PACKAGES = ("mlx_vlm", "PIL")
_TOWERS = ("vision", "visual", "connector", "multi_modal_projector", "mlp1", "embed_vision")


def has_vision(config: Mapping[str, Any]) -> bool:
    """Return whether a config is that of a vision-language model."""
    return isinstance(config.get("vision_config"), Mapping)


def open_eye(
    directory: Path, config: Mapping[str, Any], tokenizer: TokenizerWrapper
) -> FamilyEye | Reason:
    """Return the eye of a model directory, or why it has none. Reads no weights.

    Raises what a processor raises for settings that it cannot read.
    """
    reason = blind_reason(directory, config)
    if reason is not None:
        return reason
    module, _, name = FAMILIES[str(config["model_type"])].partition(":")
    found = getattr(import_module(f"omlx.models.eyes.families.{module}"), name)
    eye: FamilyEye = found(directory, config, tokenizer)
    return eye


def blind_reason(directory: Path, config: Mapping[str, Any]) -> Reason | None:
    """Return why a model directory has no eye; None if it has one. Reads names of tensors."""
    model_type = str(config.get("model_type"))
    if not has_vision(config):
        return Reason("vision.off.text")
    if model_type in CROSS_ATTENTION:
        return Reason("vision.off.cross_attention", {"model_type": model_type})
    if model_type not in FAMILIES:
        return Reason("vision.off.family", {"model_type": model_type})
    names = [name for file in weight_files(directory) for name in tensor_names(file)]
    if not any(part in name for name in names for part in _TOWERS):
        return Reason("vision.off.no_weights")
    if any(find_spec(package) is None for package in _PACKAGES):
        return Reason("vision.off.extra", {"extra": EXTRA})
    return None
