"""Every suite runs on tiny models, and both sides do the same work. No test looks at a time."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import mlx.core as mx
import pytest

from lab.bench.drive import plain_scores, request, run
from lab.bench.engine.command import run_suites
from lab.bench.engine.result import EngineResult, equality
from lab.bench.engine.suites import (
    EngineSettings,
    batch,
    measure,
    mlx_lm_speculates,
    plain,
    speculative,
)
from lab.bench.subject import Subject
from lab.tests.subjects import PROMPTS, subject

SETTINGS = EngineSettings(trials=1, prompts=2, tokens=12, windows=(1, 3), rows=(1, 3))


@cache
def llama() -> Subject:
    return subject()


@cache
def results() -> dict[str, EngineResult]:
    """Results by the names of their cases."""
    measured = run_suites(llama(), SETTINGS, (plain, speculative, batch))
    return {result.case.name: result for result in measured}


def test_greedy_answers_equal_those_of_mlx_lm() -> None:
    exact = {}
    for name, result in results().items():
        if result.exact is not None:
            exact[name] = result.exact
    assert set(exact) == {"T=0", "T=0 k=1", "T=0 k=3", "T=0.8 k=1", "T=0.8 k=3", "1 rows", "3 rows"}
    for name, equal in exact.items():
        assert equal.same == equal.of, name
        assert equal.first is None, name
    assert exact["T=0"].reference == "mlx-lm"
    assert exact["T=0.8 k=3"].reference == "omlx without speculation"
    assert exact["3 rows"].of == 3


def test_speculation_speculates_on_both_sides() -> None:
    for result in results().values():
        if result.case.suite == "spec":
            assert result.our_acceptance is not None
            assert result.their_acceptance is not None
            assert result.our_acceptance > 0
    greedy = results()["T=0 k=1"]
    assert greedy.our_acceptance == pytest.approx(greedy.their_acceptance, abs=0.1)


def test_both_sides_are_timed() -> None:
    timed = [result for result in results().values() if result.case.suite != "spec"]
    assert len(timed) == 4
    for result in timed:
        assert result.ours.median > 0
        assert result.theirs.median > 0


def test_answers_end_at_a_stop_token_on_both_sides() -> None:
    (whole,) = run(llama().loop, [request(PROMPTS[0], 12)]).tokens
    stopping = replace(llama(), stop_ids=frozenset({whole[5]}))
    settings = replace(SETTINGS, windows=(3,))
    for result in run_suites(stopping, settings, (plain, speculative)):
        assert result.exact is None or result.exact.same == result.exact.of


def test_where_mlx_lm_cannot_speculate_its_plain_decoding_is_the_other_side() -> None:
    hybrid = subject("lfm2")
    assert not mlx_lm_speculates(hybrid)
    settings = replace(SETTINGS, windows=(1,))
    greedy, *_ = run_suites(hybrid, settings, (speculative,))
    assert greedy.case.baseline.startswith("generate_step")
    assert greedy.our_acceptance is not None
    assert greedy.their_acceptance is None
    assert greedy.exact is not None
    assert greedy.exact.first is None


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_difference_says_how_near_a_tie_it_was(temperature: float) -> None:
    """Noise counts: tokens are chosen by logits and noise together."""
    settings = replace(SETTINGS, prompts=1, windows=(3,))
    cases = {case.params["temperature"]: case for case in speculative(llama(), settings)}
    samples = measure(cases[temperature], 1, lambda: None)
    (sample,) = samples.ours[0]
    (answer,) = sample.tokens
    asked = request(PROMPTS[0], 12, temperature=temperature, seed=0)
    scores = plain_scores(llama(), asked, answer[:4])
    second, best = (int(token) for token in mx.argsort(scores)[-2:])
    assert answer[4] == best
    wrong = replace(sample, tokens=((*answer[:4], second, *answer[5:]),))
    equal = equality(llama(), settings, replace(samples, ours=((wrong,),)))
    assert equal.same == 0
    assert equal.first is not None
    assert equal.first.token == 4
    gap = float(scores[best]) - float(scores[second])
    assert equal.first.gap == pytest.approx(gap, abs=1e-5)
