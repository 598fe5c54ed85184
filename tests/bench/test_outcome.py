"""What figures are made of trials: those that cannot be timed, failures, answers that end early, windows to declare."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from math import inf, isnan, nan
from pathlib import Path

import pytest

from omlx.bench.measure import Run
from omlx.bench.report import write_json
from omlx.bench.result import Samples
from omlx.bench.sides import Driven, request
from omlx.bench.speculation.compare import draft_window
from omlx.bench.speculation.modes import MODES, Minds
from omlx.bench.speculation.outcome import Outcome, outcome
from omlx.bench.speculation.report import row
from omlx.bench.speculation.trials import Case, Measured, Trial
from omlx.bench.subject import Subject
from omlx.bench.workloads import WORKLOADS
from omlx.engine.model import weight_bytes
from omlx.errors import OmlxError, Overloaded
from tests.bench.subjects import PROMPTS, subject

SAID = (1, 2, 3, 4)


def driven(
    tokens: Sequence[int] = SAID, counted: int = 3, seconds: float = 1.0, *errors: OmlxError
) -> Driven:
    return Driven(
        Run((tuple(tokens),), counted, seconds, seconds, seconds + 1.0), {}, dict(enumerate(errors))
    )


def trial(ours: Driven, theirs: Driven) -> Trial:
    return Trial(((request(PROMPTS[0], 8),),), (ours,), (theirs,))


@cache
def served() -> tuple[Subject, Minds]:
    return subject(), Minds(subject(), None)


def case(mode: str = "draft 4", workload: str = "verbatim") -> Case:
    modes, workloads = {each.name: each for each in MODES}, {each.name: each for each in WORKLOADS}
    return Case("model", *served(), workloads[workload], modes[mode], 1, 100)


def found(*trials: Trial, of: Case | None = None) -> Outcome | None:
    return outcome(Measured(of or case(), trial(driven(), driven()), list(trials)), None)


def gaining(gain: float, mode: str, workload: str) -> Outcome:
    made = found(trial(driven(seconds=1 / gain), driven()), of=case(mode, workload))
    assert made is not None
    return made


def test_what_cannot_be_timed_counts_for_nothing() -> None:
    at_once = driven(SAID[:1], counted=0, seconds=0.0)
    made = found(
        trial(at_once, at_once), trial(driven(seconds=0.5), driven()), trial(at_once, driven())
    )
    assert made is not None
    assert isnan(made.gain.values[0])
    assert (made.gain.known, made.gain.median) == ((2.0,), 2.0)
    assert "×2.00–2.00" in row(made)
    assert found(trial(at_once, at_once)) is None
    assert found() is None


def test_samples_without_a_figure() -> None:
    some = Samples((nan, 2.0, 4.0, nan))
    assert (some.least, some.median, some.most, some.quartiles) == (2.0, 3.0, 4.0, (2.5, 3.5))
    assert all(
        map(isnan, (Samples((nan,)).least, Samples((nan,)).median, Samples((nan,)).quartiles[0]))
    )


def test_what_json_has_no_word_for_is_null(tmp_path: Path) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(word)

    write_json(tmp_path / "r.json", {"gain": Samples((nan, 2.0)).to_json(), "margins": (inf, 0.5)})
    told = json.loads((tmp_path / "r.json").read_text(), parse_constant=refuse)
    assert (told["gain"]["samples"], told["gain"]["median"], told["margins"]) == (
        [None, 2.0],
        2.0,
        [None, 0.5],
    )


def test_failures_of_both_sides_are_counted() -> None:
    error = Overloaded("engine.queue_full", waiting=1, limit=1)
    made = found(
        trial(driven(SAID, 3, 1.0, error), driven()), trial(driven(), driven(SAID, 3, 1.0, error))
    )
    assert made is not None
    assert made.errors == 2


def test_an_answer_that_ended_early_is_no_near_tie() -> None:
    other = (*SAID[:3], 9)
    made = found(trial(driven(other), driven()), trial(driven(SAID[:2]), driven()))
    assert made is not None
    assert [each.token for each in made.divergences] == [3, 2]
    assert made.divergences[0].margin < made.divergences[1].margin == inf
    assert "2 differ, margin ≤ inf" in row(made)[-2]


def test_windows_are_compared_over_the_workloads_that_all_of_them_ran() -> None:
    outcomes = [gaining(2.0, "draft 2", "verbatim"), gaining(2.2, "draft 4", "verbatim")]
    late = [gaining(1.0, "draft 4", "prose"), gaining(9.0, "ngram", "prose")]
    window = {"default": "adaptive", "initial_window": 4, "min_window": 4, "max_window": 4}
    assert draft_window(outcomes + late) == window
    assert draft_window([outcomes[0], late[0]]) is None
    assert draft_window(late[1:]) is None


def test_a_mode_begins_with_what_a_server_knows_of_the_draft() -> None:
    it = subject()
    small = subject("gemma3_text").model
    minds = Minds(replace(it, draft=small), None)
    minds.enter("verbatim", MODES[0], random_draft=False)
    (kept,) = minds._kept.values()
    assert kept.cost_model.draft_share == pytest.approx(
        weight_bytes(small) / weight_bytes(it.model)
    )
