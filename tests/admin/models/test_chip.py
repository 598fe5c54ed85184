"""The chip beside a model's name: one case per branch of `model_chip`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from omlx.admin.models.list_page import Chip, Tone, model_chip
from omlx.admin.models.model_snapshot import ModelSnapshot
from omlx.engine.strategy import NGRAM, OFF
from omlx.errors import Reason
from omlx.models.catalog.entry import ModelEntry, Status
from omlx.models.catalog.reference import MissingDraft, Reference
from omlx.models.pool.resident import ModelStatus, State
from omlx.models.pool.speculation_config import SpeculationConfig
from omlx.records import DrafterStats, RequestStats
from omlx.settings.layer import Source
from omlx.settings.schema import table

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
    return RequestStats(10, 0, 20, 0.0, 1.0, 1.0, 1, drafters, reason, speedup=speedup)


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
