"""The list of models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omlx.admin.models.chip import Chip, Tone
from omlx.admin.models.list_page import Memory, ModelRow, ModelsView, models_view
from omlx.admin.models.model_snapshot import ModelSnapshot
from omlx.errors import Reason
from omlx.models.catalog.entry import ModelEntry, Status
from omlx.models.pool.load_weights import LoadProgress
from omlx.models.pool.resident import ModelStatus, State
from omlx.models.pool.speculation_config import SpeculationConfig
from omlx.settings.schema import Settings

MEMORY = Memory(limit_bytes=1000, used_bytes=10)
HEAD_ONLY = Reason("model.head_only", {"kind": "EAGLE"})
NGRAM_READY = Chip(Tone.WATCH, "ui.chip.with_ngram")


def entry(name: str, **fields: Any) -> ModelEntry:
    return ModelEntry(name, Path("/m") / name, "home", **fields)


def test_models_in_memory_are_listed_first_and_unusable_ones_apart() -> None:
    pinned = SpeculationConfig(settings=Settings(pinned=True))
    idle = ModelSnapshot(entry("org/idle"), ModelStatus(State.UNLOADED), SpeculationConfig())
    status = ModelStatus(State.LOADING, LoadProgress(3, 12), waiting=2)
    loading = ModelSnapshot(entry("plain"), status, pinned)
    head = entry("org/head", status=Status.SKIPPED, reason=HEAD_ONLY)
    skipped = ModelSnapshot(head, ModelStatus(State.UNLOADED))

    view = models_view([idle, skipped, loading], MEMORY, "org/idle")

    first = ModelRow(loading.entry, status, pinned=True, is_default=False, chip=None)
    second = ModelRow(idle.entry, idle.status, pinned=False, is_default=True, chip=NGRAM_READY)
    assert view == ModelsView(MEMORY, models=[first, second], skipped=[head])
