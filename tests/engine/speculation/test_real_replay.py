"""SmolLM2's answers to 311 questions, played by the real speculator where little pays, and where
much does.
"""

import pytest

from tests.engine.speculation.replay import REAL, first_requests, recorded, share_of_best
from tests.engine.speculation.worlds import MEASURED, Machine
from tests.engine.speculation.worlds import REAL as DEAR
from tests.lanes import few

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
