"""Vision support of a model: image family before weights are read, then tower.

    bytes ─ image_name ─► image ─ patches ─► PreparedImage
    rendered prompt ─ expand ─► text ─ tokenizer ─► ids ─ place ─► ids and spans of the request

A family is built from JSON files of the model directory, and needs Pillow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from omlx.engine.device_errors import isolate
from omlx.errors import ModelError, Reason, one_line
from omlx.machine import extra_command
from omlx.models.catalog.files import ModelFiles
from omlx.models.library.choose import AUTO, BORROWED, is_borrowed
from omlx.text.tokens import Tokenizer

if TYPE_CHECKING:
    from mlx import nn

    from omlx.engine.device.model import Model
    from omlx.engine.vision.reader import Vision
    from omlx.models.vision.family import VisionFamily

MAX_TOKENS: Final = 1280
"""Tokens — limit per image in families with variable sizes: 1 megapixel for Qwen."""


FAMILIES: Final = {
    "qwen2_vl": "whole_images:Qwen2Family",
    "qwen2_5_vl": "whole_images:Qwen2Family",
    "qwen3_vl": "whole_images:Qwen3Family",
    "qwen3_vl_moe": "whole_images:Qwen3Family",
    "qwen3_5": "whole_images:Qwen35Family",
    "qwen3_5_moe": "whole_images:Qwen35Family",
    "idefics3": "tiled_images:IdeficsFamily",
    "smolvlm": "tiled_images:IdeficsFamily",
    "gemma3": "whole_images:Gemma3Family",
    "gemma4": "whole_images:Gemma4Family",
    "gemma4_unified": "whole_images:Gemma4UnifiedFamily",
    "pixtral": "whole_images:PixtralFamily",
    "mistral3": "whole_images:Mistral3Family",
    "llava": "tiled_images:LlavaFamily",
    "llava_next": "tiled_images:LlavaNextFamily",
    "lfm2_vl": "tiled_images:Lfm2Family",
    "internvl": "tiled_images:InternFamily",
    "internvl_chat": "tiled_images:InternChatFamily",
    "ernie4_5_moe_vl": "borrowed_images:ErnieFamily",
    "glm5_next": "borrowed_images:Glm5NextFamily",
    "inkling": "borrowed_images:InklingFamily",
    "inkling_mm_model": "borrowed_images:InklingFamily",
    "mimo_v2": "borrowed_images:MimoFamily",
    "qwen4_exp": "borrowed_images:Qwen4Family",
    "step3p7": "borrowed_images:Step3Family",
}
"""Module and class, by `model_type`."""

CROSS_ATTENTION: Final = ("mllama", "florence2")
"""Families whose layers attend to images instead of reading image tokens."""
_OFF: Final = {
    **dict.fromkeys(CROSS_ATTENTION, "vision.off.cross_attention"),
    "mistral_large3": "vision.off.ignored",  # mlx-vlm's text model drops given embeddings
}

EXTRA: Final = "vision"
_PACKAGES = ("mlx_vlm", "PIL")
_TOWERS = ("vision", "visual", "connector", "multi_modal_projector", "mlp1", "embed_vision")


def has_vision(config: Mapping[str, Any]) -> bool:
    """Return whether a config describes a tower; DeepSeek V4 does so by its number of layers."""
    return isinstance(config.get("vision_config"), Mapping) or bool(config.get("vision_n_layers"))


def open_family(
    files: ModelFiles, tokenizer: Tokenizer, library: str = AUTO
) -> VisionFamily | Reason:
    """Return the image family of a model, or the reason for none. Reads no weights.

    `library` is the setting. Raises the errors of a processor with unreadable settings.
    """
    config, reason = files.config, vision_off(files)
    if reason is not None:
        return reason
    model_type = str(config["model_type"])
    if is_borrowed(config, library) != (model_type in BORROWED):
        return Reason("vision.off.family", {"model_type": model_type})
    module, _, name = FAMILIES[model_type].partition(":")
    found = getattr(import_module(f"omlx.models.vision.{module}"), name)
    family: VisionFamily = found(files.directory, config, tokenizer)
    return family


def vision_off(files: ModelFiles) -> Reason | None:
    """Return why a model reads no images; None if it does. Reads names of tensors."""
    config = files.config
    model_type = str(config.get("model_type"))
    if not has_vision(config):
        return Reason("vision.off.text")
    if model_type not in FAMILIES or config.get("model_file"):  # of the folder: text alone
        return Reason(_OFF.get(model_type, "vision.off.family"), {"model_type": model_type})
    if not files.tensors.names_any(*_TOWERS):
        return Reason("vision.off.no_weights")
    if any(find_spec(package) is None for package in _PACKAGES):
        return Reason("vision.off.extra", {"command": extra_command(EXTRA)})
    return None


@dataclass(frozen=True, slots=True)
class VisionSupport:
    """Image family of a model and, once loaded, `reader` with its tower; else `off_reason`.

    `tower_bytes` are part of the model's weights.
    """

    family: VisionFamily | None = None
    reader: Vision | None = None
    off_reason: Reason | None = None
    tower_bytes: int = 0

    def open(self, towers: nn.Module, model: Model, tower_bytes: int) -> VisionSupport:
        """Connect towers in memory to their text model. Raises nothing."""
        assert self.family is not None
        from omlx.models.vision.family import open_vision  # noqa: PLC0415 — needs the extra

        with isolate() as outcome:
            reader = open_vision(self.family, towers, model)
            return replace(self, reader=reader, tower_bytes=tower_bytes)
        return failed(outcome.error)

    def follows(self, *, vision: bool) -> bool:
        """Return whether this support matches the setting `vision`.

        Draft models are loaded without a tower, as if the setting were off.
        """
        if self.off_reason is not None and self.off_reason.code == "vision.off.setting":
            return not vision
        return vision or self.family is None


def read_vision_off(files: ModelFiles) -> Reason | None:
    """Return `vision_off`, or errors as a reason. Raises nothing."""
    with isolate() as outcome:
        return vision_off(files)
    return failed(outcome.error).off_reason


def read_support(files: ModelFiles, tokenizer: Tokenizer, library: str = AUTO) -> VisionSupport:
    """Return the support of a model, without its tower. Raises nothing."""
    with isolate() as outcome:
        family = open_family(files, tokenizer, library)
        if isinstance(family, Reason):
            return VisionSupport(off_reason=family)
        return VisionSupport(family)
    return failed(outcome.error)


def failed(error: Exception | None) -> VisionSupport:
    detail = one_line(error)
    if isinstance(error, ModelError):  # no sentence within the sentence
        detail = str(error.params.get("detail", detail))[:400]
    return VisionSupport(off_reason=Reason("vision.off.failed", {"detail": detail}))
