"""Samples of a trial: whether they decide, and whether answers are those of plain decoding."""

from __future__ import annotations

from dataclasses import replace

from omlx.measure.exactness import Difference
from omlx.trial.configurations import NGRAM, PLAIN, configurations
from omlx.trial.report import report
from omlx.trial.samples import Place, Samples
from omlx.trial.texts import Kind
from omlx.trial.trial import Plan, Trial
from tests.trial.sample_sets import ALONE, AUTO, DRAFT, KINDS, TOKENS, answer, measured, steady


def test_another_round_is_needed_only_while_a_speedup_is_unclear() -> None:
    decided = measured({AUTO: steady(1.8, 1.0)})
    assert not decided.undecided(configurations([DRAFT]), KINDS)
    unclear = measured({AUTO: {Kind.CODE: [0.9, 1.4, 1.5]}})
    assert unclear.undecided(configurations([DRAFT]), KINDS)


def test_the_first_difference_is_found() -> None:
    samples = Samples()
    samples.add(Place(0, DRAFT, Kind.CODE, PLAIN), answer((1, 2, 3)))
    samples.add(Place(0, DRAFT, Kind.CODE, NGRAM), answer((1, 2, 3)))
    samples.add(Place(0, DRAFT, Kind.CODE, AUTO), answer((1, 2, 4)))
    samples.add(Place(0, DRAFT, Kind.CODE, ALONE), answer((1, 2)))
    exactness = samples.exactness()
    assert (exactness.same, exactness.of) == (1, 3)
    assert exactness.first == Difference(Place(0, DRAFT, Kind.CODE, AUTO), 2)


def test_a_drafter_that_failed_is_reported_and_nothing_compared_is_no_equality() -> None:
    plan = Plan("org/model", (DRAFT,), (Kind.CODE,), 100)
    trial = Trial("1", plan)
    assert report(trial)["exact"] is None
    assert report(trial)["draft_error"] is None
    trial.samples.by_place.update(measured({AUTO: {Kind.CODE: [1.1, 1.2]}}).by_place)
    assert report(trial)["exact"]["same"] == report(trial)["exact"]["of"] == 2
    assert report(trial)["draft_error"] is None
    place = Place(1, DRAFT, Kind.CODE, AUTO)
    trial.samples.add(place, replace(answer(TOKENS), draft_error="RuntimeError: a test"))
    assert report(trial)["draft_error"]["params"] == {
        "failed": 1,
        "of": 4,
        "detail": "RuntimeError: a test",
    }
