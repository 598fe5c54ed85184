"""The sight of one model: its eye, then its tower, or why it reads text alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omlx.engine.device_errors import isolate
from omlx.errors import Reason
from omlx.models.catalog.model_config import read_config
from omlx.models.eyes.eye import Eye
from omlx.models.eyes.open_eye import blind_reason, open_eye

if TYPE_CHECKING:
    from mlx import nn
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from omlx.engine.model import Model
    from omlx.engine.vision.reader import Vision
    from omlx.models.eyes.family import FamilyEye


@dataclass(frozen=True, slots=True)
class Sight:
    """How a loaded model reads images: all three, or the reason why it does not.

    `tower_bytes` are part of the model's weights.
    """

    eye: Eye | None = None
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
