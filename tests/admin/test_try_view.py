"""The card that tries drafts, as plain data."""

from __future__ import annotations

from typing import Any

from omlx.admin.formats import duration
from omlx.admin.models.drafts_view import Candidate, Tried
from omlx.admin.trial.try_view import Bar, Label, Progress, outcome_view, tried_view, try_view
from omlx.admin.trial.view import estimate_view
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


def trial(**fields: Any) -> Trial:
    found = Trial("1", Plan("org/big", (DRAFT,), (Kind.CODE,), 100), **fields)
    place = Place(0, DRAFT, Kind.CODE, AUTO)
    found.samples.add(place.plain, Sample((tuple(range(101)),), 100, 1.0))
    found.samples.add(place, Sample((tuple(range(101)),), 100, 0.5, proposed=80, accepted=60))
    return found


def told(**more: Any) -> dict[str, Any]:
    nothing = {
        "model": "org/big",
        "running": None,
        "kinds": ["code"],
        "conversation": False,
        "most_drafts": 3,
    }
    return {**nothing, "trial": None, "last": None, "results": {}, "applied": None, **more}


def candidate(name: str, **fields: Any) -> Candidate:
    whole = {
        "size_bytes": 1,
        "adds_bytes": 1,
        "fits": True,
        "chosen": False,
        "declared": False,
        **fields,
    }
    return Candidate(id=f"org/{name}", name=name, owner="org", **whole)


def test_a_trial_that_runs_shows_how_far_it_is() -> None:
    running = trial(now=Place(0, DRAFT, Kind.CODE, AUTO), now_tokens=25, discarded=1, spent_s=2.0)
    view = outcome_view(told(trial=report(running)))
    assert view.progress == Progress(False, 2.25, 12, 10.0, "code", AUTO_LABEL, 1)
    assert view.found is None
    plain, ngram, _, auto = view.charts[0].bars
    assert (plain, ngram.rate) == (Bar(PLAIN_LABEL, 100.0, 50.0), None)
    assert auto == Bar(AUTO_LABEL, 200.0, 100.0, 2.0, 2.0, 2.0, "faster", 0.75)
    paused = outcome_view(told(trial=report(trial(state=State.PAUSED)))).progress
    assert paused is not None
    assert paused.paused


def test_what_was_cancelled_says_so_and_nothing_else() -> None:
    view = outcome_view(told(trial=report(trial(state=State.CANCELLED))))
    assert (view.progress, view.ended, view.reason, view.found) == (None, "cancelled", None, None)


def test_the_draft_in_use_is_ticked_first_else_the_smallest_one() -> None:
    small, large = candidate("small"), candidate("large", chosen=True)
    assert try_view(told(), [small, large]).chosen == ["org/large"]
    assert try_view(told(), [small]).chosen == ["org/small"]
    assert try_view(told(), []).chosen == []
    assert try_view(told(running="org/other"), []).elsewhere == "org/other"
    assert try_view(told(running="org/big"), []).elsewhere is None


def test_the_picker_hears_of_the_last_trial_of_each_draft() -> None:
    results = {
        DRAFT: {"record": {"overall": {"median": 1.7}}, "stale": [{"code": "trial.stale.machine"}]},
        "org/silent": {"record": {"overall": None}, "stale": []},
    }
    assert tried_view(told(results=results)) == {DRAFT: Tried(1.7, stale=True)}


def test_an_estimate_is_said_in_sentences() -> None:
    estimate = Estimate(100.0, 200.0, False, 0, 16_000_000_000, True)
    assert [each["code"] for each in estimate_view(estimate)["said"]] == [
        "trial.estimate.time",
        "trial.estimate.no_memory",
    ]
    guessed = Estimate(100.0, 101.0, True, 2_000_000_000, 1_000_000_000, False)
    assert [each["code"] for each in estimate_view(guessed)["said"]] == [
        "trial.estimate.about",
        "trial.estimate.no_room",
        "trial.estimate.guessed",
    ]
    assert [duration(each).replace("\u202f", " ") for each in (1, 42, 58, 150, 4800)] == [
        "5 s",
        "40 s",
        "1 min",
        "2 min",
        "1 h 20 min",
    ]
