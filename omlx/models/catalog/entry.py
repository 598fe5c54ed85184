"""What discovery knows about one model directory, without opening its weights."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from omlx.errors import Reason

BUNDLED: Final = "bundled"
"""Source name of the demonstration models that come with this package."""


class Status(StrEnum):
    USABLE = "usable"
    SHADOWED = "shadowed"
    """Usable, but an earlier place has a model of the same id."""
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One model directory. `source` names its place; `reason` is set unless it is usable.

    `quantization` is a short label (`4-bit`, `mxfp4`), None for dense weights; `size_bytes` counts
    weights.
    """

    id: str
    path: Path
    source: str
    status: Status = Status.USABLE
    reason: Reason | None = None
    size_bytes: int = 0
    model_type: str | None = None
    quantization: str | None = None

    @property
    def name(self) -> str:
        """The short name: the id without its organisation."""
        return self.id.rpartition("/")[2]

    @property
    def usable(self) -> bool:
        return self.status is Status.USABLE
