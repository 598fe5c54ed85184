"""Page of all models: those in memory first, those that cannot be used apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fastapi import Request

from omlx.errors import Reason
from omlx.models.pool.resident import State

from ..addresses import MODELS, PARTS
from ..pages import Page, Pages
from .chip import Chip, model_chip
from .model_snapshot import ModelSnapshot, ModelSnapshots

SECTION: Final = "models"


@dataclass(frozen=True, slots=True)
class Memory:
    limit_bytes: int
    used_bytes: int


@dataclass(frozen=True, slots=True)
class Residency:
    """`progress` is the loaded share of the weights, None before their size is known."""

    state: State
    progress: float | None
    active: int
    waiting: int
    weights_bytes: int

    @property
    def loading(self) -> bool:
        return self.state is State.LOADING

    @property
    def in_memory(self) -> bool:
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
    residency: Residency
    pinned: bool
    is_default: bool
    chip: Chip | None


@dataclass(frozen=True, slots=True)
class SkippedRow:
    id: str
    path: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class ModelsView:
    memory: Memory
    models: Sequence[ModelRow]
    skipped: Sequence[SkippedRow]


@dataclass(frozen=True, slots=True)
class ModelsPage:
    snapshots: ModelSnapshots

    def register(self, pages: Pages) -> None:
        pages.route(MODELS, self.show)
        pages.route(f"{PARTS}/models", self.show_list)

    async def show(self, request: Request) -> Page:
        return Page("models/list_page.html", await self._view(), SECTION)

    async def show_list(self, request: Request) -> Page:
        return Page("models/list.html", await self._view())

    async def _view(self) -> ModelsView:
        pool = self.snapshots.pool
        memory = Memory(pool.limit_bytes, pool.used_bytes)
        return models_view(await self.snapshots.all(), memory, pool.default)


def models_view(
    snapshots: Sequence[ModelSnapshot], memory: Memory, default: str | None
) -> ModelsView:
    """`default` is the id of the model that serves requests without one."""
    rows = [model_row(snapshot, default) for snapshot in snapshots if snapshot.usable]
    rows.sort(key=lambda row: row.residency.state is State.UNLOADED)
    skipped = [_skipped(snapshot) for snapshot in snapshots if not snapshot.usable]
    return ModelsView(memory, rows, skipped)


def model_row(model: ModelSnapshot, default: str | None) -> ModelRow:
    entry = model.entry
    return ModelRow(
        id=entry.id,
        name=entry.name,
        owner=entry.id.rpartition("/")[0],
        kind=tuple(part for part in (entry.model_type, entry.quantization) if part),
        size_bytes=entry.size_bytes,
        found_in=entry.source,
        path=str(entry.path),
        residency=_residency(model),
        pinned=model.speculative is not None and model.speculative.settings.pinned,
        is_default=entry.id == default,
        chip=model_chip(model),
    )


def _residency(model: ModelSnapshot) -> Residency:
    residency, progress = model.residency, None
    if residency.progress is not None and residency.progress.total:
        progress = residency.progress.done / residency.progress.total
    return Residency(
        state=residency.state,
        progress=progress,
        active=residency.active,
        waiting=residency.waiting,
        weights_bytes=residency.weights_bytes,
    )


def _skipped(model: ModelSnapshot) -> SkippedRow:
    entry = model.entry
    assert entry.reason is not None, "a model that cannot be used has a reason"
    return SkippedRow(entry.id, str(entry.path), entry.reason)
