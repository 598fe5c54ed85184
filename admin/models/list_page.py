"""Page of all models: those in memory first, those that cannot be used apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from fastapi import Request

from omlx.errors import Reason
from omlx.models.catalog.entry import ModelEntry
from omlx.models.pool.resident import ModelStatus, State
from omlx.settings.schema import Settings

from ..addresses import MODELS, PARTS
from ..pages import Page, Pages
from .checkpoint_facts import TEXT_ALONE
from .chip import Chip, model_chip
from .model_snapshot import ModelSnapshot, ModelSnapshots

SECTION: Final = "models"
MIB: Final = 1 << 20
"""Precision of the memory shown: a process at rest allocates and frees a few kilobytes."""

FIRST_ROWS: Final = 20
"""Rows in full in the page itself, which is usable sooner; its part that is refreshed has all."""


@dataclass(frozen=True, slots=True)
class Memory:
    limit_bytes: int
    used_bytes: int


@dataclass(frozen=True, slots=True)
class ModelRow:
    """`context_length` in tokens is the configured limit, if that is shorter than the model's.

    `blind` is why the model does not read images, None if it does; `tower_bytes` is the memory of
    its vision tower.
    """

    entry: ModelEntry
    status: ModelStatus
    pinned: bool
    is_default: bool
    chip: Chip | None
    parameters: int | None = None
    context_length: int | None = None
    alias: str | None = None
    ttl_s: int | None = None
    blind: Reason | None = TEXT_ALONE
    tower_bytes: int = 0

    @property
    def id(self) -> str:
        return self.entry.id


@dataclass(frozen=True, slots=True)
class ModelsView:
    """`models` after the first `rows_in_full` are shown by name only; None: all are in full."""

    memory: Memory
    models: Sequence[ModelRow]
    skipped: Sequence[ModelEntry]
    rows_in_full: int | None = None

    @property
    def sources(self) -> Sequence[str]:
        """The places that models come from, in their order."""
        return list(dict.fromkeys(row.entry.source for row in self.models))


@dataclass(frozen=True, slots=True)
class ModelsPage:
    snapshots: ModelSnapshots

    def register(self, pages: Pages) -> None:
        pages.route(MODELS, self.show)
        pages.part(f"{PARTS}/models", self.show_list)

    async def show(self, request: Request) -> Page:
        view = await self._view()
        return Page("models/list_page.html", replace(view, rows_in_full=FIRST_ROWS), SECTION)

    async def show_list(self, request: Request) -> Page:
        return Page("models/list.html", await self._view())

    async def _view(self) -> ModelsView:
        pool = self.snapshots.pool
        memory = Memory(pool.limit_bytes, pool.used_bytes // MIB * MIB)
        return models_view(await self.snapshots.all(), memory, self.snapshots.default)


def models_view(
    snapshots: Sequence[ModelSnapshot], memory: Memory, default: str | None
) -> ModelsView:
    """`default` is the id of the configured default model."""
    rows = [model_row(snapshot, default) for snapshot in snapshots if snapshot.usable]
    rows.sort(key=lambda row: row.status.state is State.UNLOADED)
    skipped = [snapshot.entry for snapshot in snapshots if not snapshot.usable]
    return ModelsView(memory, rows, skipped)


def model_row(model: ModelSnapshot, default: str | None) -> ModelRow:
    settings = Settings() if model.speculative is None else model.speculative.settings
    facts = model.facts
    lengths = (facts.longest_context, settings.max_context or facts.context_length)
    return ModelRow(
        model.entry,
        replace(model.status, idle_s=None),  # not shown; it would make each view different
        settings.pinned,
        model.entry.id == default,
        model_chip(model),
        model.facts.parameters,
        min(filter(None, lengths), default=None),
        settings.alias,
        settings.ttl_seconds,
        model.blind,
        model.tower_bytes,
    )
