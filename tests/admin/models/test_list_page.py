"""The list of models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omlx.admin.models.chip import Chip, Tone
from omlx.admin.models.list_page import (
    Memory,
    ModelRow,
    ModelsView,
    Residency,
    SkippedRow,
    models_view,
)
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


def entry(name: str, **more: Any) -> ModelEntry:
    return ModelEntry(name, Path("/m") / name, "home", **more)


def test_models_in_memory_are_listed_first_and_unusable_ones_apart() -> None:
    idle = ModelSnapshot(
        entry("org/idle", size_bytes=5, model_type="llama"),
        ModelStatus(State.UNLOADED),
        SpeculationConfig(),
    )
    loading = ModelSnapshot(
        entry("plain", size_bytes=9, model_type="qwen3", quantization="4-bit"),
        ModelStatus(State.LOADING, LoadProgress(3, 12), waiting=2),
        SpeculationConfig(settings=Settings(pinned=True)),
    )
    skipped = ModelSnapshot(
        entry("org/head", status=Status.SKIPPED, reason=HEAD_ONLY), ModelStatus(State.UNLOADED)
    )
    assert models_view([idle, skipped, loading], MEMORY, "org/idle") == ModelsView(
        MEMORY,
        models=[
            ModelRow(
                id="plain",
                name="plain",
                owner="",
                kind=("qwen3", "4-bit"),
                size_bytes=9,
                found_in="home",
                path="/m/plain",
                residency=Residency(State.LOADING, 0.25, active=0, waiting=2, weights_bytes=0),
                pinned=True,
                is_default=False,
                chip=NGRAM_READY,
            ),
            ModelRow(
                id="org/idle",
                name="idle",
                owner="org",
                kind=("llama",),
                size_bytes=5,
                found_in="home",
                path="/m/org/idle",
                residency=Residency(State.UNLOADED, None, active=0, waiting=0, weights_bytes=0),
                pinned=False,
                is_default=True,
                chip=NGRAM_READY,
            ),
        ],
        skipped=[SkippedRow("org/head", "/m/org/head", HEAD_ONLY)],
    )
