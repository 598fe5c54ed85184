"""Outcomes of trials: untimed ones, failures, answers that end early, declared draft lengths."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from math import inf, isnan, nan
from pathlib import Path

import mlx.core as mx
import pytest

from lab.bench.cases import MODES, CaseTrials, LearnedStates, SpeculationCase, Trial
from lab.bench.console import write_json
from lab.bench.drive import Divergence, Driven, StepMeter, divergence, plain_scores, request, run
from lab.bench.outcome import Outcome, checksum, declared_draft_length
from lab.bench.report import SpeculationReport, row
from lab.bench.series import Series
from lab.bench.subject import Subject, untrained
from lab.bench.workloads import WORKLOADS
from lab.tests.subjects import PROMPTS, subject
from omlx.engine.device.model import weight_bytes
from omlx.errors import OmlxError, Overloaded
from omlx.measure.sample import Sample

ANSWER = (1, 2, 3, 4)
OVERLOADED = Overloaded("engine.queue_full", waiting=1, limit=1)


def driven(
    tokens: Sequence[int] = ANSWER, counted: int = 3, seconds: float = 1.0, *errors: OmlxError
) -> Driven:
    sample = Sample((tuple(tokens),), counted, seconds, seconds, seconds + 1.0)
    return Driven(sample, {}, dict(enumerate(errors)))


def trial(ours: Driven, theirs: Driven) -> Trial:
    return Trial(((request(PROMPTS[0], 8),),), (ours,), (theirs,))


@cache
def served() -> tuple[Subject, LearnedStates]:
    measured = subject()
    return measured, LearnedStates(measured, None)


def case(mode: str = "draft 4", workload: str = "verbatim") -> SpeculationCase:
    modes = {item.name: item for item in MODES}
    workloads = {item.name: item for item in WORKLOADS}
    return SpeculationCase("model", *served(), workloads[workload], modes[mode], 1, 100)


def outcome_of(*trials: Trial, of: SpeculationCase | None = None) -> Outcome | None:
    return Outcome.of(CaseTrials(of or case(), trial(driven(), driven()), list(trials)))


def gaining(gain: float, mode: str, workload: str) -> Outcome:
    result = outcome_of(trial(driven(seconds=1 / gain), driven()), of=case(mode, workload))
    assert result is not None
    return result


def test_a_busy_machine_is_named_instead_of_a_figure() -> None:
    disturbed = driven(seconds=0.5)
    sample = replace(disturbed.sample, others_s=1.0, machine_s=2.0)
    result = outcome_of(trial(replace(disturbed, sample=sample), driven()))
    assert result is not None
    assert result.busy
    assert row(result)[4:10] == ("busy", "–", "–", "–", "–", "–")
    report = SpeculationReport({}, {}, [result], [], (0.0,))
    assert report.quiet == []
    assert dict(report.tables())["Speed-up, model, 1 stream"][1] == ("verbatim", "busy")


def test_trials_that_cannot_be_timed_count_for_nothing() -> None:
    at_once = driven(ANSWER[:1], counted=0, seconds=0.0)
    halved = trial(driven(seconds=0.5), driven())
    result = outcome_of(trial(at_once, at_once), halved, trial(at_once, driven()))
    assert result is not None
    assert isnan(result.gain.values[0])
    assert result.gain.known == (2.0,)
    assert "×2.00–2.00" in row(result)
    assert outcome_of(trial(at_once, at_once)) is None
    assert outcome_of() is None


def test_figures_that_json_cannot_hold_are_null(tmp_path: Path) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(word)

    write_json(tmp_path / "r.json", {"gain": Series((nan, 2.0)).to_json(), "margins": (inf, 0.5)})
    report = json.loads((tmp_path / "r.json").read_text(), parse_constant=refuse)
    assert report["gain"]["samples"] == [None, 2.0]
    assert report["gain"]["median"] == 2.0
    assert report["margins"] == [None, 0.5]


def test_a_checksum_depends_on_tokens_and_on_the_ends_of_answers() -> None:
    assert checksum([(1, 2), (3,)]) == checksum([[1, 2], [3]])
    assert checksum([(1, 2), (3,)]) != checksum([(1,), (2, 3)])
    assert checksum([(1, 2)]) != checksum([(1, 3)])


def test_the_clock_would_start_when_the_last_row_gets_its_first_tokens() -> None:
    meter = StepMeter(2)
    assert not meter.would_start([0, 0])
    meter.add({0: (1, 2)}, ended=False)
    assert meter.would_start([1])
    meter.add({0: (3,), 1: (1,)}, ended=False)
    assert not meter.would_start([0, 1])


def test_failures_of_both_sides_are_counted() -> None:
    failed = driven(ANSWER, 3, 1.0, OVERLOADED)
    result = outcome_of(trial(failed, driven()), trial(driven(), failed))
    assert result is not None
    assert result.errors == 2


def test_an_answer_that_ended_early_is_no_near_tie() -> None:
    other = driven((*ANSWER[:3], 9))
    result = outcome_of(trial(other, driven()), trial(driven(ANSWER[:2]), driven()))
    assert result is not None
    assert [found.token for found in result.divergences] == [3, 2]
    assert result.divergences[0].margin < result.divergences[1].margin == inf
    assert "2 differ, margin ≤ inf" in row(result)[-2]


def test_draft_lengths_are_compared_over_the_workloads_that_all_of_them_ran() -> None:
    outcomes = [gaining(2.0, "draft 2", "verbatim"), gaining(2.2, "draft 4", "verbatim")]
    late = [gaining(1.0, "draft 4", "prose"), gaining(9.0, "ngram", "prose")]
    length = {"default": "adaptive", "initial_window": 4, "min_window": 4, "max_window": 4}
    assert declared_draft_length(outcomes + late) == length
    assert declared_draft_length([outcomes[0], late[0]]) is None
    assert declared_draft_length(late[1:]) is None


def test_a_mode_starts_with_what_a_server_knows_of_the_draft() -> None:
    measured = subject()
    small = subject("gemma3_text").model
    states = LearnedStates(replace(measured, draft=small), None)
    speculator = states.enter("verbatim", MODES[0], random_draft=False)
    share = weight_bytes(small) / weight_bytes(measured.model)
    assert speculator.cost_model.draft_share == pytest.approx(share)


def test_modes_cover_fixed_lengths_and_every_strategy() -> None:
    assert [mode.name for mode in MODES[-4:]] == ["draft", "ngram", "chain", "auto"]
    assert [mode.draft_length for mode in MODES if mode.draft_length] == [1, 2, 4, 8, 16]
    assert [mode.name for mode in MODES if not mode.needs_draft] == ["ngram", "auto"]


def test_an_untrained_model_is_another_one_and_leaves_the_original_alone() -> None:
    model = subject().model
    tokens = mx.arange(6)[None]
    before = model(tokens)
    other = untrained(model)
    assert other is not None
    assert mx.array_equal(before, model(tokens))
    assert not mx.allclose(before, other(tokens))
    assert untrained(None) is None


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_margin_is_measured_in_the_scores_by_which_tokens_are_chosen(temperature: float) -> None:
    measured, _ = served()
    asked = request((1, 2, 3, 4), 12, temperature=temperature, seed=7)
    (answer,) = run(measured.loop, [asked]).tokens
    for place, chosen in enumerate(answer):
        scores = plain_scores(measured, asked, answer[:place])
        assert int(mx.argmax(scores)) == chosen
        *_, third, second, _ = (int(token) for token in mx.argsort(scores))
        found = divergence(measured, asked, answer, (*answer[:place], third))
        assert found is not None
        assert found.token == place
        best = float(scores[chosen])
        assert found.margin == pytest.approx(best - float(scores[second]), abs=1e-5)
        assert found.apart == pytest.approx(best - float(scores[third]), abs=1e-5)
    assert divergence(measured, asked, answer, answer[:5]) == Divergence(5, inf, inf)
    assert divergence(measured, asked, answer, answer) is None
