"""The page of one model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from omlx.errors import Reason

from ..settings.form_view import FieldGroup
from ..trial.try_view import TryView
from .prefixes_view import PrefixesView
from .speculation_view import SpeculationView
from .view import ModelRow


@dataclass(frozen=True, slots=True)
class ModelView:
    """`speculation`, `trial` and `prefixes` are None for a model that cannot be used, and `reason` then says why."""

    model: ModelRow
    revision: str
    advanced: Sequence[FieldGroup]
    speculation: SpeculationView | None = None
    trial: TryView | None = None
    prefixes: PrefixesView | None = None
    reason: Reason | None = None

    @property
    def path(self) -> str:
        """Where the API keeps its settings."""
        return f"/models/{self.model.id}/settings"
