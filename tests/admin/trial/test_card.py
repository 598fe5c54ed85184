"""The card that tries drafts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from omlx.admin.trial.card import (
    Bar,
    Label,
    OutcomeView,
    Progress,
    TrialCard,
    TrialDraft,
    outcome_view,
    trial_card,
)
from omlx.admin.trial.records import estimate_record
from omlx.admin.trial.trial_service import TrialStatus
from omlx.errors import Reason
from omlx.measure.sample import Sample
from omlx.trial.configurations import TrialConfiguration
from omlx.trial.estimate import Estimate
from omlx.trial.report import report
from omlx.trial.samples import Place
from omlx.trial.texts import Kind
from omlx.trial.trial import Plan, State, Trial

DRAFT = "org/small"
AUTO = TrialConfiguration("auto", DRAFT)
PLAIN_LABEL, AUTO_LABEL = Label("off", "off", ""), Label("auto:org/small", "auto", "small")
STATUS = TrialStatus("org/big")


def outcome(**fields: Any) -> OutcomeView:
    """The outcome of a trial with one measured place."""
    trial = Trial("1", Plan("org/big", (DRAFT,), (Kind.CODE,), 100), **fields)
    place = Place(0, DRAFT, Kind.CODE, AUTO)
    trial.samples.add(place.plain, Sample((tuple(range(101)),), 100, 1.0))
    trial.samples.add(place, Sample((tuple(range(101)),), 100, 0.5, proposed=80, accepted=60))
    return outcome_view(replace(STATUS, trial=report(trial)), "en")


def draft(name: str, *, checked: bool = False) -> TrialDraft:
    return TrialDraft(f"org/{name}", name, "org", 1, checked)


def card(*drafts: TrialDraft, running: str | None = None) -> TrialCard:
    return trial_card(replace(STATUS, running=running), drafts, "en")


def test_a_running_trial_shows_its_progress() -> None:
    place = Place(0, DRAFT, Kind.CODE, AUTO)
    view = outcome(now=place, now_tokens=25, discarded=1, spent_s=2.0)
    assert view.progress == Progress(False, 2.25, 12, 10.0, "code", AUTO_LABEL, 1)
    assert view.result is None
    plain, ngram, _, auto = view.charts[0].bars
    assert (plain, ngram.rate) == (Bar(PLAIN_LABEL, 100.0, 50.0), None)
    assert auto == Bar(AUTO_LABEL, 200.0, 100.0, 2.0, 2.0, 2.0, "faster", 0.75)
    paused = outcome(state=State.PAUSED).progress
    assert paused is not None
    assert paused.paused


def test_a_cancelled_trial_shows_neither_progress_nor_result() -> None:
    view = outcome(state=State.CANCELLED)
    assert (view.progress, view.ended, view.reason, view.result) == (None, "cancelled", None, None)


def test_a_failed_trial_shows_its_reason() -> None:
    view = outcome(state=State.FAILED, reason=Reason("model.no_weights", {"model": "org/big"}))
    assert view.ended == "failed"
    assert view.reason


@pytest.mark.parametrize(
    ("drafts", "checked"),
    [
        ([draft("small"), draft("large", checked=True)], ["large"]),
        ([draft("small"), draft("large")], ["small"]),
        ([draft(name, checked=True) for name in "abcd"], ["a", "b", "c"]),
        ([], []),
    ],
)
def test_likely_drafts_are_checked_else_the_smallest(
    drafts: list[TrialDraft], checked: list[str]
) -> None:
    assert [choice.name for choice in card(*drafts).drafts if choice.checked] == checked


def test_a_trial_of_another_model_is_named() -> None:
    assert card(running="org/other").elsewhere == "org/other"
    assert card(running="org/big").elsewhere is None


def test_an_estimate_has_sentences() -> None:
    estimate = Estimate(100.0, 200.0, False, 0, 16_000_000_000, True)
    assert [reason["code"] for reason in estimate_record(estimate)["said"]] == [
        "trial.estimate.time",
        "trial.estimate.no_memory",
    ]
    guessed = Estimate(100.0, 101.0, True, 2_000_000_000, 1_000_000_000, False)
    assert [reason["code"] for reason in estimate_record(guessed)["said"]] == [
        "trial.estimate.about",
        "trial.estimate.no_room",
        "trial.estimate.guessed",
    ]
