"""The list of models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from omlx.admin.models.list_page import (
    Chip,
    Memory,
    ModelRow,
    ModelsView,
    Tone,
    model_row,
    models_view,
)
from omlx.admin.models.model_snapshot import CheckpointFacts, ModelSnapshot
from omlx.errors import Reason
from omlx.models.catalog.entry import ModelEntry, Status
from omlx.models.pool.load_weights import LoadProgress
from omlx.models.pool.resident import ModelStatus, State
from omlx.models.pool.speculation_config import SpeculationConfig
from omlx.settings.schema import Settings
from tests.admin.running import API, administered, change
from tests.server.running import HYBRID, TARGET

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


def test_a_row_shows_what_is_configured_and_known_of_a_model() -> None:
    settings = Settings(alias="chat", ttl_seconds=600, max_context=2048)
    snapshot = ModelSnapshot(
        entry("org/model"),
        ModelStatus(State.READY, idle_s=3.5),
        SpeculationConfig(settings=settings),
        facts=CheckpointFacts(parameters=7_600_000_000, context_length=4096, longest_context=4096),
    )
    row = model_row(snapshot, None)
    assert (row.alias, row.ttl_s, row.context_length) == ("chat", 600, 2048)
    assert (row.parameters, row.is_default) == (7_600_000_000, False)
    later = replace(snapshot, status=ModelStatus(State.READY, idle_s=9.0))
    assert model_row(later, None) == row  # an idle model does not change its row


def test_only_a_configured_default_model_has_the_badge(tmp_path: Path) -> None:
    badge = '<span class="badge">default</span>'
    with administered(tmp_path, default=None) as server, server.browser() as client:
        assert client.post(f"{API}/models/{HYBRID}/load").status_code == 200
        assert badge not in client.get("/admin/models").text
        change(client, "settings", default_model="hybrid")
        client.post(f"{API}/models/{TARGET}/load")
        rows = client.get("/admin/parts/models").text.split('<li class="model"')
        assert [HYBRID in row for row in rows if badge in row] == [True]
