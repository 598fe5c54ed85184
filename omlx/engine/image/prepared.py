"""An image as a vision tower reads it, and what towers cost. No mlx."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class PreparedImage:
    """A decoded, resized image. Equal names mean equal arrays.

    `name` is a hash of the file's bytes and of the preprocessing. `arrays` are numpy arrays under
    the names of the family's processor. A tower reads `patches` patches and makes `features`
    features of them, one for each image token. `grid` is the (rows, columns) of the features where
    positions have two axes. `nbytes` is the size of the arrays.
    """

    name: str
    arrays: Mapping[str, Any] = field(compare=False, repr=False)
    patches: int
    features: int
    grid: tuple[int, int] | None = None
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class TowerFacts:
    """What the scheduler must know of a tower, which computes an image in `steps` steps.

    `patch_cost` is the work of one patch in tokens of prefill, without attention, which adds the
    share `attention` of it for each patch that a patch attends to, at most `attended`.
    `patch_bytes` bounds the activations of one patch, `pair_bytes` are those of two patches of
    which one attends to the other, `feature_bytes` is the size of one feature.
    `whole`: the text model sees all of an image at once, so that no pass may end inside one.
    """

    steps: int = 1
    patch_cost: float = 1.0
    attention: float = 0.0
    attended: int = 1 << 31
    patch_bytes: int = 0
    feature_bytes: int = 0
    pair_bytes: int = 0
    whole: bool = False

    def step_cost(self, patches: int) -> float:
        """Return the work of one step for an image, in tokens of prefill."""
        attention = self.attention * min(patches, self.attended)
        return patches * self.patch_cost * (1 + attention) / self.steps

    def activation_bytes(self, patches: int) -> int:
        """Return the bytes of one step for an image, which it frees at its end."""
        return patches * (self.patch_bytes + min(patches, self.attended) * self.pair_bytes)
