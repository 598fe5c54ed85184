"""The list of models as a page shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from omlx.errors import Reason
from omlx.models.catalog.entry import Status
from omlx.models.pool.resident import ModelStatus, State

from .chip_view import Chip, chip_view
from .model_snapshot import Standing


@dataclass(frozen=True, slots=True)
class Memory:
    limit_bytes: int
    used_bytes: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where a model is. `progress` is the share that has been read while it loads, None before the size is known."""

    state: str
    progress: float | None
    active: int
    waiting: int
    weights_bytes: int

    @property
    def loading(self) -> bool:
        return self.state == State.LOADING

    @property
    def here(self) -> bool:
        return self.state in (State.READY, State.DRAINING)


@dataclass(frozen=True, slots=True)
class ModelRow:
    id: str
    name: str
    owner: str
    kind: tuple[str, ...]
    size_bytes: int
    found_in: str
    path: str
    place: Place
    pinned: bool
    is_default: bool
    chip: Chip | None


@dataclass(frozen=True, slots=True)
class SkippedRow:
    id: str
    path: str
    found_in: str
    shadowed: bool
    reason: Reason


@dataclass(frozen=True, slots=True)
class ModelsView:
    memory: Memory
    models: Sequence[ModelRow]
    skipped: Sequence[SkippedRow]


def models_view(standings: Sequence[Standing], memory: Memory, default: str | None) -> ModelsView:
    """Models in memory first, then as they were found; apart from them what is not offered."""
    rows = [model_row(each, default) for each in standings if each.usable]
    rows.sort(key=lambda row: row.place.state == State.UNLOADED)
    return ModelsView(memory, rows, [_skipped(each) for each in standings if not each.usable])


def model_row(model: Standing, default: str | None) -> ModelRow:
    entry = model.entry
    return ModelRow(
        id=entry.id,
        name=entry.name,
        owner=entry.id.rpartition("/")[0],
        kind=tuple(part for part in (entry.model_type, entry.quantization) if part),
        size_bytes=entry.size_bytes,
        found_in=entry.source,
        path=str(entry.path),
        place=place_view(model.told),
        pinned=model.speculative is not None and model.speculative.settings.pinned,
        is_default=entry.id == default,
        chip=chip_view(model),
    )


def place_view(told: ModelStatus) -> Place:
    read = told.progress
    return Place(
        state=told.state.value,
        progress=read.done / read.total if read is not None and read.total else None,
        active=told.active,
        waiting=told.waiting,
        weights_bytes=told.weights_bytes,
    )


def _skipped(model: Standing) -> SkippedRow:
    entry = model.entry
    assert entry.reason is not None
    shadowed = entry.status is Status.SHADOWED
    return SkippedRow(entry.id, str(entry.path), entry.source, shadowed, entry.reason)
