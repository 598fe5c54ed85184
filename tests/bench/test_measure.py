"""Pairs are interleaved, and both sides are timed from the same point."""

from __future__ import annotations

from itertools import pairwise
from math import isnan

import pytest

from omlx.bench.exact import first_difference
from omlx.bench.measure import Case, Meter, Run, Side, measure, tokens_per_second, total
from omlx.bench.result import result_of, summary

PAIRS, TRIALS = 3, 4


def run(counted: int, seconds: float = 1.0, proposed: int = 0, accepted: int = 0) -> Run:
    return Run(((1,) * counted,), counted, seconds, seconds / 2, 2 * seconds, proposed, accepted)


def test_sides_alternate_in_order_and_the_first_round_is_not_counted() -> None:
    calls: list[tuple[str, int, int]] = []
    ticks: list[None] = []

    def recorded(name: str, pair: int) -> Side:
        def call(seed: int) -> Run:
            calls.append((name, pair, seed))
            return run(1)

        return call

    case = Case("plain", "x", "y", [(recorded("a", i), recorded("b", i)) for i in range(PAIRS)])
    measured = measure(case, TRIALS, lambda: ticks.append(None))
    assert len(ticks) == PAIRS * (TRIALS + 1)
    assert [len(trial) for trial in measured.ours] == [PAIRS] * TRIALS
    rounds = [calls[i : i + 2] for i in range(0, len(calls), 2)]
    assert all(one[1:] == other[1:] for one, other in rounds)
    firsts = [one[0] for one, _ in rounds]
    for i in range(PAIRS):
        of_pair = firsts[i::PAIRS]
        assert all(one != other for one, other in pairwise(of_pair))
    assert {seed for _, _, seed in calls} == set(range(TRIALS))


def test_the_clock_starts_when_every_row_has_tokens_and_stops_when_one_ends() -> None:
    meter = Meter(2)
    assert not meter.starts_with([0, 0])
    meter.arrived({0: (1, 2)}, ended=False)
    assert meter.starts_with([1])
    meter.arrived({0: (3,), 1: (1,)}, ended=False)
    assert not meter.starts_with([0, 1])
    meter.arrived({0: (4,), 1: (2, 3)}, ended=False)
    meter.arrived({0: (5,), 1: (4,)}, ended=True)
    meter.arrived({1: (5,)}, ended=True)
    measured = meter.run(proposed=4, accepted=1)
    assert measured.tokens == ((1, 2, 3, 4, 5), (1, 2, 3, 4, 5))
    assert measured.counted == 5
    assert 0 < measured.seconds <= measured.total_s
    assert (measured.proposed, measured.accepted) == (4, 1)


def test_a_run_without_a_second_step_counts_nothing() -> None:
    meter = Meter(1)
    meter.arrived({0: (1,)}, ended=True)
    assert (meter.run().counted, meter.run().seconds) == (0, 0.0)
    assert isnan(tokens_per_second(meter.run()))


def test_ratios_are_taken_within_trials() -> None:
    def replay(runs: list[Run]) -> Side:
        rest = iter([runs[0], *runs])
        return lambda seed: next(rest)

    ours = replay([run(10, proposed=4, accepted=2), run(30), run(20)])
    theirs = replay([run(5), run(10), run(20)])
    result = result_of(
        measure(Case("spec", "x", "y", [(ours, theirs)], {"temperature": 0.8}), 3, lambda: None)
    )
    assert result.ratio.values == (2.0, 3.0, 1.0)
    assert (result.ratio.median, result.our_acceptance, result.their_acceptance) == (2.0, 0.5, None)
    assert summary([result, result]) == {
        "spec T=0.8": {"geometric_mean": pytest.approx(2.0), "least": 2.0}
    }


def test_a_smaller_figure_is_better_where_it_is_a_time() -> None:
    case = Case(
        "host", "x", "y", [(lambda seed: run(10), lambda seed: run(20))], smaller_is_better=True
    )
    assert result_of(measure(case, 1, lambda: None)).ratio.values == (2.0,)


def test_runs_add_up() -> None:
    whole = total([run(2, 1.0, 4, 1), run(3, 2.0, 4, 3)])
    assert (whole.counted, whole.seconds, whole.proposed, whole.accepted) == (5, 3.0, 8, 4)
    assert [len(tokens) for tokens in whole.tokens] == [2, 3]


def test_first_difference() -> None:
    assert first_difference((1, 2, 3), (1, 2, 3)) is None
    assert first_difference((1, 2, 3), (1, 5, 3)) == 1
    assert first_difference((1, 2), (1, 2, 3)) == 2
