"""The list of models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from omlx.admin.models.list_page import (
    Chip,
    Memory,
    ModelRow,
    ModelsView,
    Tone,
    model_chip,
    model_row,
    models_view,
)
from omlx.admin.models.model_snapshot import CheckpointFacts, ModelSnapshot
from omlx.admin.web.rendering import render
from omlx.engine.speculation.strategy import NGRAM, OFF
from omlx.errors import Reason
from omlx.models.catalog.reference import MissingDraft, Reference
from omlx.models.catalog.registry import ModelEntry, Status
from omlx.models.pool.footprint import MemoryParts
from omlx.models.pool.opening import LoadProgress
from omlx.models.pool.served import ModelStatus, State
from omlx.models.pool.speculation import SpeculationConfig
from omlx.records import DrafterStats, RequestStats
from omlx.settings.layers import Source
from omlx.settings.schema import Settings, table
from tests.admin.running import API, administered, change
from tests.server.running import HYBRID, TARGET

MEMORY = Memory(limit_bytes=1000, used=MemoryParts(6, 3, 1))
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


def test_a_model_that_does_not_fit_says_so() -> None:
    large = entry("org/large", size_bytes=MEMORY.limit_bytes + 1, quantization="4-bit")
    fits = entry("org/fits", size_bytes=MEMORY.limit_bytes, quantization="4-bit")
    unloaded = ModelStatus(State.UNLOADED)
    snapshots = [ModelSnapshot(each, unloaded, SpeculationConfig()) for each in (large, fits)]
    shown = render("models/list.html", "en", view=models_view(snapshots, MEMORY, None))
    assert shown.count("too large: needs") == shown.count("data-fits") == 1
    assert shown.index("org/large") < shown.index("too large: needs") < shown.index("org/fits")


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


ENTRY = ModelEntry("org/big", Path("/models/org/big"), "home")
DRAFT = ModelEntry("org/small", Path("/models/org/small"), "home")
ON = Reason("spec.on")
OBSERVING = Reason("spec.observing")
ABSENT = Reason("draft.not_here", {"draft": "org/small"})
DOES_NOT_PAY = Reason("spec.off.does_not_pay", {"speedup": 0.94})
READY = ModelStatus(State.READY)
WITH_DRAFT = SpeculationConfig(draft=DRAFT)


def answer(
    reason: Reason, speedup: float | None = None, proposed: int = 0, accepted: int = 0
) -> RequestStats:
    drafters = {"ngram": DrafterStats(proposed, accepted, rounds=1)} if proposed else {}
    return RequestStats(10, 0, 60, 0.0, 1.0, 1.0, 1, drafters, reason, speedup=speedup)


def model(
    status: ModelStatus = READY, speculative: SpeculationConfig | None = None, *recent: RequestStats
) -> ModelSnapshot:
    return ModelSnapshot(
        ENTRY,
        status,
        speculative or SpeculationConfig(reason=Reason("spec.off.no_draft_model")),
        recent=recent,
    )


PAUSED = Reason("batch.off.uneven", {"error": "x"})

CASES = {
    "off": (model(READY, SpeculationConfig(strategy=OFF)), Chip(Tone.QUIET, "ui.chip.off")),
    "not downloaded": (
        model(READY, SpeculationConfig(reason=ABSENT), answer(ON, 2.0, 4, 4)),
        Chip(Tone.WAIT, "ui.chip.absent", reason=ABSENT),
    ),
    "on its way": (
        model(
            READY,
            SpeculationConfig(
                reason=ABSENT, missing_draft=MissingDraft(Reference("org/small"), fetching=True)
            ),
        ),
        Chip(Tone.WAIT, "ui.chip.fetching", reason=ABSENT),
    ),
    "unfit": (
        model(READY, SpeculationConfig(reason=Reason("draft.unfit.probe"))),
        Chip(Tone.WAIT, "ui.chip.unfit", reason=Reason("draft.unfit.probe")),
    ),
    "a draft for all models that does not fit this one": (
        model(
            READY,
            SpeculationConfig(
                reason=Reason("draft.unfit.same_model"),
                sources={**dict.fromkeys(table(), Source.BUILT_IN), "draft_model": Source.CLI},
            ),
        ),
        Chip(Tone.WATCH, "ui.chip.with_ngram"),
    ),
    "several requests": (
        model(replace(READY, active=3), WITH_DRAFT, answer(ON, 1.6, 100, 74), answer(PAUSED)),
        Chip(Tone.GOOD, "ui.chip.on", speedup=1.6, acceptance=0.74, reason=ON),
    ),
    "on": (
        model(
            READY,
            WITH_DRAFT,
            answer(ON, 1.4, 50, 30),
            answer(ON, 1.8, 50, 44),
            answer(Reason("spec.off.no_chance")),
        ),
        Chip(Tone.GOOD, "ui.chip.on", speedup=1.6, acceptance=0.74, reason=ON),
    ),
    "on, not measured": (
        model(READY, WITH_DRAFT, answer(ON, None, 4, 1)),
        Chip(Tone.GOOD, "ui.chip.on", acceptance=0.25, reason=ON),
    ),
    "slower here": (
        model(READY, WITH_DRAFT, answer(ON, 1.6, 100, 74), answer(DOES_NOT_PAY)),
        Chip(Tone.QUIET, "ui.chip.does_not_pay", speedup=0.94, reason=DOES_NOT_PAY),
    ),
    "watching alone": (
        model(READY, SpeculationConfig(strategy=NGRAM), answer(OBSERVING)),
        Chip(Tone.WATCH, "ui.chip.nothing_repeats", reason=OBSERVING),
    ),
    "watching with a draft": (
        model(replace(READY, draft="org/small"), WITH_DRAFT, answer(OBSERVING)),
        Chip(Tone.WATCH, "ui.chip.watching", reason=OBSERVING),
    ),
    "failed": (
        model(READY, WITH_DRAFT, answer(Reason("spec.off.drafter_failed", {"detail": "x"}))),
        Chip(Tone.QUIET, "ui.chip.off", reason=Reason("spec.off.drafter_failed", {"detail": "x"})),
    ),
    "on, and slower": (
        model(READY, WITH_DRAFT, answer(ON, 0.68, 100, 40)),
        Chip(Tone.WAIT, "ui.chip.on", speedup=0.68, acceptance=0.4, reason=ON),
    ),
    "being loaded": (model(ModelStatus(State.LOADING), WITH_DRAFT), None),
    "to come, with a draft": (
        model(ModelStatus(State.UNLOADED), WITH_DRAFT),
        Chip(Tone.WATCH, "ui.chip.with_draft", {"draft": "small"}),
    ),
    "to come, without": (
        model(ModelStatus(State.UNLOADED)),
        Chip(Tone.WATCH, "ui.chip.with_ngram"),
    ),
    "settings broken": (ModelSnapshot(ENTRY, READY), Chip(Tone.BAD, "ui.chip.broken")),
    "not usable": (ModelSnapshot(replace(ENTRY, status=Status.SKIPPED), READY), None),
}


@pytest.mark.parametrize("case", CASES)
def test_chip(case: str) -> None:
    snapshot, chip = CASES[case]
    assert model_chip(snapshot) == chip
