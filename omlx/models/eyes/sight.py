"""How a model reads images: its eye, known before any weights are read, and then its tower.

    bytes ─ image_name ─► image ─ patches ─► PreparedImage
    rendered prompt ─ expand ─► text ─ tokenizer ─► ids ─ place ─► ids and spans of the request

An eye is made of the JSON files of a model directory. It needs Pillow, which images are of.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from omlx.engine.device_errors import isolate
from omlx.errors import Reason
from omlx.models.catalog.files import read_config, tensor_names, weight_files

if TYPE_CHECKING:
    from mlx import nn
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from omlx.engine.model import Model
    from omlx.engine.vision.reader import Vision
    from omlx.models.eyes.family import FamilyEye

MAX_TOKENS: Final = 1280
"""Tokens of one image at most, where a family lets images have many: 1 megapixel for Qwen."""


FAMILIES: Final = {
    "qwen2_vl": "whole_images:Qwen2Eye",
    "qwen2_5_vl": "whole_images:Qwen2Eye",
    "qwen3_vl": "whole_images:Qwen3Eye",
    "qwen3_vl_moe": "whole_images:Qwen3Eye",
    "qwen3_5": "whole_images:Qwen35Eye",
    "qwen3_5_moe": "whole_images:Qwen35Eye",
    "idefics3": "tiled_images:IdeficsEye",
    "smolvlm": "tiled_images:IdeficsEye",
    "gemma3": "whole_images:Gemma3Eye",
    "gemma4": "whole_images:Gemma4Eye",
    "gemma4_unified": "whole_images:Gemma4UnifiedEye",
    "pixtral": "whole_images:PixtralEye",
    "mistral3": "whole_images:Mistral3Eye",
    "llava": "tiled_images:LlavaEye",
    "llava_next": "tiled_images:LlavaNextEye",
    "lfm2_vl": "tiled_images:Lfm2Eye",
    "internvl": "tiled_images:InternEye",
    "internvl_chat": "tiled_images:InternChatEye",
}
"""Module and class, by `model_type`."""

CROSS_ATTENTION: Final = frozenset({"mllama", "florence2"})
"""Families whose layers attend to images instead of reading them as tokens."""

EXTRA: Final = "omlx[vision]"
_PACKAGES = ("mlx_vlm", "PIL")
_TOWERS = ("vision", "visual", "connector", "multi_modal_projector", "mlp1", "embed_vision")


def has_vision(config: Mapping[str, Any]) -> bool:
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
    found = getattr(import_module(f"omlx.models.eyes.{module}"), name)
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


@dataclass(frozen=True, slots=True)
class Sight:
    """How a loaded model reads images: all three, or the reason why it does not.

    `tower_bytes` are part of the model's weights.
    """

    eye: FamilyEye | None = None
    vision: Vision | None = None
    off_reason: Reason | None = None
    tower_bytes: int = 0

    def follows(self, *, vision: bool) -> bool:
        """Return whether it is what the setting `vision` asks for.

        The weights of a draft model are read without a tower, as if the setting were off.
        """
        if self.off_reason is not None and self.off_reason.code == "vision.off.setting":
            return not vision
        return vision or self.eye is None


@dataclass(frozen=True, slots=True)
class LazySight:
    """An eye with the lazy weights of its tower, `vlm`; or the reason why there is none."""

    eye: FamilyEye | None = None
    vlm: nn.Module | None = None
    off_reason: Reason | None = None

    def open(self, model: Model, tower_bytes: int) -> Sight:
        """Connect the tower, whose weights are read, to its text model."""
        if self.eye is None or self.vlm is None:
            return Sight(off_reason=self.off_reason)
        from omlx.models.eyes.tower import open_vision  # noqa: PLC0415 — needs the extra

        with isolate() as outcome:
            vision = open_vision(self.eye, self.vlm, model)
            return Sight(self.eye, vision, tower_bytes=tower_bytes)
        return Sight(off_reason=_failure(outcome.error))


def read_blind_reason(directory: Path) -> Reason | None:
    """Return why a model directory has no eye; None if it has one. Raises nothing."""
    with isolate() as outcome:
        return blind_reason(directory, read_config(directory, "config.json"))
    return _failure(outcome.error)


def read_sight(directory: Path, tokenizer: TokenizerWrapper) -> Sight:
    """Return the eye of a model directory, without its tower. Raises nothing."""
    with isolate() as outcome:
        config = read_config(directory, "config.json")
        eye = open_eye(directory, config, tokenizer)
        return Sight(off_reason=eye) if isinstance(eye, Reason) else Sight(eye)
    return Sight(off_reason=_failure(outcome.error))


def lazy_sight(
    directory: Path, config: Mapping[str, Any], tokenizer: TokenizerWrapper
) -> LazySight:
    """Return the sight of a model directory; reads no weights. Raises nothing."""
    with isolate() as outcome:
        eye = open_eye(directory, config, tokenizer)
        if isinstance(eye, Reason):
            return LazySight(off_reason=eye)
        from omlx.models.eyes.tower import read_vlm  # noqa: PLC0415 — needs the extra

        return LazySight(eye, read_vlm(directory))
    return LazySight(off_reason=_failure(outcome.error))


def _failure(error: Exception | None) -> Reason:
    detail = f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]
    return Reason("vision.off.failed", {"detail": detail})
