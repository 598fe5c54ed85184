"""Pairs are interleaved, and figures are made of trials."""

from __future__ import annotations

from itertools import pairwise

import pytest

from lab.bench.engine.result import result_of, summary
from lab.bench.engine.suites import EngineCase, Side, measure
from omlx.measure.sample import Sample
from tests.measure.test_sample import sample

PAIRS, TRIALS = 3, 4


def test_sides_alternate_in_order_and_the_first_round_is_not_counted() -> None:
    calls: list[tuple[str, int, int]] = []
    ticks: list[None] = []

    def recorded(name: str, pair: int) -> Side:
        def call(seed: int) -> Sample:
            calls.append((name, pair, seed))
            return sample(1)

        return call

    pairs = [(recorded("a", number), recorded("b", number)) for number in range(PAIRS)]
    samples = measure(EngineCase("plain", "x", "y", pairs), TRIALS, lambda: ticks.append(None))
    assert len(ticks) == PAIRS * (TRIALS + 1)
    assert [len(trial) for trial in samples.ours] == [PAIRS] * TRIALS
    rounds = [calls[i : i + 2] for i in range(0, len(calls), 2)]
    assert all(first[1:] == second[1:] for first, second in rounds)
    firsts = [first[0] for first, _ in rounds]
    for number in range(PAIRS):
        assert all(name != following for name, following in pairwise(firsts[number::PAIRS]))
    assert {seed for _, _, seed in calls} == set(range(TRIALS))


def test_ratios_are_taken_within_trials() -> None:
    def replay(samples: list[Sample]) -> Side:
        rest = iter([samples[0], *samples])
        return lambda seed: next(rest)

    ours = replay([sample(10, proposed=4, accepted=2), sample(30), sample(20)])
    theirs = replay([sample(5), sample(10), sample(20)])
    case = EngineCase("spec", "x", "y", [(ours, theirs)], {"temperature": 0.8})
    result = result_of(measure(case, 3, lambda: None))
    assert result.ratio.values == (2.0, 3.0, 1.0)
    assert result.ratio.median == 2.0
    assert result.our_acceptance == 0.5
    assert result.their_acceptance is None
    assert summary([result, result]) == {
        "spec T=0.8": {"geometric_mean": pytest.approx(2.0), "least": 2.0}
    }


def test_a_smaller_figure_is_better_where_it_is_a_time() -> None:
    pair = (lambda seed: sample(10), lambda seed: sample(20))
    case = EngineCase("host", "x", "y", [pair], smaller_is_better=True)
    assert result_of(measure(case, 1, lambda: None)).ratio.values == (2.0,)
