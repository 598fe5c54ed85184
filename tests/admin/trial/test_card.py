"""The card that tries drafts."""

from __future__ import annotations

from typing import Any

import pytest
from markupsafe import escape

from omlx.admin.settings.view import Json
from omlx.admin.trial import OutcomeView, charts, outcome_view, trial_card
from omlx.admin.trial_service import estimate_record, report_record
from omlx.admin.web.rendering import render
from omlx.catalog import catalog
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
SETUPS = ["off", "ngram", f"draft:{DRAFT}", f"auto:{DRAFT}"]
STATUS: Json = {"model": "org/big", "trial": None, "last": None, "applied": None}


def outcome(**fields: Any) -> OutcomeView:
    """The outcome of a trial with one measured place."""
    trial = Trial("1", Plan("org/big", (DRAFT,), (Kind.CODE,), 100), **fields)
    place = Place(0, DRAFT, Kind.CODE, AUTO)
    trial.samples.add(place.plain, Sample((tuple(range(101)),), 100, 1.0))
    trial.samples.add(place, Sample((tuple(range(101)),), 100, 0.5, proposed=80, accepted=60))
    return outcome_view({**STATUS, "trial": report_record(report(trial), "en")})


def html(view: OutcomeView) -> str:
    return render("trial/outcome.html", "en", view=view)


def test_a_running_trial_shows_its_progress() -> None:
    place = Place(0, DRAFT, Kind.CODE, AUTO)
    view = outcome(now=place, now_tokens=25, discarded=1, spent_s=2.0)
    assert view.running
    (chart,) = view.trial_charts
    assert chart.kind == "code"
    assert [bar.setup["name"] for bar in chart.bars] == SETUPS
    assert [bar.share for bar in chart.bars] == [50.0, 0.0, 0.0, 100.0]
    shown = html(view)
    assert 'value="2.25" max="12"' in shown
    assert "code edits: auto with small" in shown
    assert "10\u202fs" in shown
    assert "Measuring" in shown


def test_a_paused_trial_says_so() -> None:
    view = outcome(state=State.PAUSED)
    assert view.running
    assert catalog()["ui.try.paused"] in html(view)


def test_a_cancelled_trial_shows_neither_progress_nor_result() -> None:
    view = outcome(state=State.CANCELLED)
    assert (view.running, view.trial_charts, view.last_charts) == (False, (), ())
    assert html(view).strip() == f'<p class="hint">{catalog()["ui.try.cancelled"]}</p>'


def test_a_failed_trial_shows_its_reason() -> None:
    reason = Reason("model.no_weights", {"path": "/m"})
    view = outcome(state=State.FAILED, reason=reason)
    assert html(view).strip() == f'<p class="hint hint-wait">{escape(reason.message)}</p>'


@pytest.mark.parametrize(
    ("drafts", "likely", "checked"),
    [
        (["small", "large"], ["large"], ["large"]),
        (["small", "large"], [], ["small"]),
        (["a", "b", "c", "d"], ["a", "b", "c", "d"], ["a", "b", "c"]),
        ([], [], []),
    ],
)
def test_likely_drafts_are_checked_else_the_first(
    drafts: list[str], likely: list[str], checked: list[str]
) -> None:
    card = trial_card(STATUS, dict.fromkeys(drafts, 1), likely)
    assert card.checked == checked


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


def test_bars_are_as_long_as_the_speedups_beside_them_say() -> None:
    """Medians of rates may have another ratio than the median of paired ratios."""

    def cell(setup: str, rate: float, speedup: float | None = None) -> Json:
        spread = None
        if speedup is not None:
            spread = {"median": speedup, "low": 1.9, "high": 2.6, "gain": "faster"}
        record = {"setup": setup, "kind": "code", "rate": {"median": rate}, "speedup": spread}
        return {**record, "acceptance": None}

    setups = [
        {"name": "off", "strategy": "off", "draft": None},
        {"name": f"draft:{DRAFT}", "strategy": "draft", "draft": DRAFT},
    ]
    cells = [cell("off", 42.1), cell(f"draft:{DRAFT}", 225.0, 2.0)]
    (chart,) = charts({"setups": setups, "kinds": ["code"], "cells": cells})
    assert [bar.share for bar in chart.bars] == [50.0, 100.0]
