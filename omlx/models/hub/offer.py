"""A model to download, as people choose it: size, quantization, context, draft."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from omlx.engine.piece import Layout
from omlx.errors import Reason
from omlx.models.hub.fit import Fit, fit


@dataclass(frozen=True, slots=True)
class Companion:
    """A draft model or head that is downloaded along. `declared`: by the model's package."""

    model: str
    download_bytes: int = 0
    weight_bytes: int = 0
    declared: bool = False


@dataclass(frozen=True, slots=True)
class Offer:
    """`model` is a reference, `context_length` in tokens. None: unknown.

    `reason` says why the model cannot be used, or why the hub does not show it.
    """

    model: str
    download_bytes: int = 0
    weight_bytes: int = 0
    quantization: str | None = None
    model_type: str | None = None
    context_length: int | None = None
    layout: Layout = Layout(0)  # noqa: RUF009 — frozen
    parameters: int | None = None
    downloads: int | None = None
    modified: str | None = None
    companion: Companion | None = None
    reason: Reason | None = None

    @property
    def repository(self) -> str:
        return self.model.partition("@")[0].partition(":")[0]

    @property
    def downloadable(self) -> bool:
        """A draft head alone is of use beside its model."""
        return self.reason is None or self.reason.code == "model.head_only"

    @property
    def on_hub(self) -> bool:
        """Another one comes as a package, and is small enough to answer at once."""
        return "/" in self.repository

    def fit(self, limit_bytes: int) -> Fit:
        """Whether it fits into so much memory, with its companion."""
        weights = self.weight_bytes
        if self.companion is not None:
            weights += self.companion.weight_bytes
        return fit(weights, self.layout, self.context_length, limit_bytes)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Offer:
        companion, reason = record.pop("companion"), record.pop("reason")
        return cls(
            layout=Layout(**record.pop("layout")),
            companion=None if companion is None else Companion(**companion),
            reason=None if reason is None else Reason(**reason),
            **record,
        )
