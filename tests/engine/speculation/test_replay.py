"""Recorded answers, played by the real speculator with the pass costs of five machines."""

from itertools import product
from statistics import harmonic_mean

import pytest

from tests.engine.speculation.replay import (
    REAL,
    first_requests,
    oracle,
    recorded,
    replay,
    share_of_best,
)
from tests.engine.speculation.worlds import MEASURED, Machine
from tests.engine.speculation.worlds import REAL as DEAR
from tests.lanes import few

SPEEDUPS = {
    "CPU, float32": (2.528, 2.906),
    "CPU, hybrid": (3.032, 3.905),
    "M3 Max, 4 bit": (2.402, 2.726),
    "M5 Max, 70B, 4 bit": (2.366, 2.717),
    "M3 Ultra, bfloat16": (2.786, 3.233),
}
RECURRENT_SPEEDUPS = {
    "CPU, float32": (2.392, 2.717),
    "CPU, hybrid": (2.937, 3.724),
    "M3 Max, 4 bit": (2.227, 2.459),
    "M5 Max, 70B, 4 bit": (2.203, 2.479),
    "M3 Ultra, bfloat16": (2.605, 2.988),
}


def speedup(machine: Machine) -> float:
    return harmonic_mean(replay(machine, workload) for workload in recorded())


@pytest.mark.parametrize("shape", few(MEASURED, "M3 Max, 4 bit", "CPU, hybrid"))
def test_a_replay_is_as_fast_as_before(shape):
    assert speedup(Machine(shape, 0.12)) >= 0.99 * SPEEDUPS[shape][1]


@pytest.mark.slow
@pytest.mark.parametrize("shape", MEASURED)
def test_a_replay_is_as_fast_as_before_for_lookups_and_hybrids(shape):
    assert speedup(Machine(shape)) >= 0.99 * SPEEDUPS[shape][0]
    for draft, before in zip((0.0, 0.12), RECURRENT_SPEEDUPS[shape], strict=True):
        share = 0.98 if draft and shape == "M5 Max, 70B, 4 bit" else 0.99
        assert speedup(Machine(shape, draft, recurrent=True)) >= share * before


@pytest.mark.parametrize("shape", ["M3 Max, 4 bit"])
def test_lookups_reach_most_of_what_the_oracle_does(shape):
    reached = [replay(Machine(shape), workload) for workload in recorded()]
    possible = [oracle(Machine(shape), workload) for workload in recorded()]
    assert harmonic_mean(reached) >= 0.82 * harmonic_mean(possible)
    assert all(ours <= best for ours, best in zip(reached, possible, strict=True))


@pytest.mark.parametrize(("shape", "draft"), [*product(MEASURED, (0.0, 0.3))])
def test_the_worst_case_of_recorded_answers_loses_nothing(shape, draft):
    assert replay(Machine(shape, draft), "hostile") >= 0.98


HEAD = 0.08
"""A pass of the head, in plain steps: one layer of thirty, and 8,192 of 49,152 rows."""

FIRST = 16
"""Answers of a workload that are each the first of a server."""

drafters = pytest.mark.parametrize("draft", [0.0, HEAD], ids=["lookups", "head"])


def test_the_answers_are_many_and_of_six_kinds():
    answers = recorded(REAL)
    assert [*answers] == ["edit", "agent", "code", "list", "chat", "prose"]
    assert sum(map(len, answers.values())) == 311
    drafted = [bool(run) for texts in answers.values() for text in texts for run in text.drafted]
    assert 0.3 < sum(drafted) / len(drafted) < 0.5


@drafters
@pytest.mark.parametrize("shape", few(DEAR, "M4 Pro, 4 bit"))
def test_the_first_answer_loses_nothing_where_little_pays(shape, draft):
    least = 0.95 if shape == "M1, 4 bit" else 0.98
    for workload, texts in recorded(REAL).items():
        assert first_requests(Machine(shape, draft), texts[:FIRST]) >= least, workload


@pytest.mark.slow
@drafters
@pytest.mark.parametrize("shape", MEASURED)
def test_the_first_answer_loses_nothing(shape, draft):
    for workload, texts in recorded(REAL).items():
        assert first_requests(Machine(shape, draft), texts[:FIRST]) >= 0.97, workload


@pytest.mark.slow
@drafters
@pytest.mark.parametrize("shape", [*DEAR, *MEASURED])
def test_answers_of_one_server_are_nearly_as_fast_as_by_the_best_fixed_setting(shape, draft):
    for workload, texts in recorded(REAL).items():
        assert share_of_best(Machine(shape, draft), texts) >= 0.945, workload
