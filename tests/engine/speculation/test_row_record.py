"""What a row's steps teach: about lookups that were not used, and of its speed-up."""

from dataclasses import replace

import pytest

from omlx.engine.speculation.cost_model import PLAIN, CostModel
from omlx.engine.speculation.drafter import Draft, Proposal
from omlx.engine.speculation.drafting import RowRecord
from omlx.engine.speculation.policy import History, RowPolicy
from omlx.engine.speculation.speculator import Speculator
from omlx.engine.step.row import Clock, Interval, Row
from omlx.engine.types import Request
from omlx.records import MAX_STEP_DEVIATION


def lookup(match: int, *tokens: int) -> Proposal:
    return Proposal("ngram", len(tokens), match=match, tokens=tokens)


def test_an_unused_lookup_counts_where_the_next_match_is_drafted():
    """Every second lookup of three tokens is right, and the match of four behind it is drafted."""
    row = Row(0, Request("a", (1,)), [1], 9, Clock(0.0))
    record = RowRecord(row, RowPolicy(CostModel(), History()), [], {}, {})
    for _ in range(10):
        record.unused = lookup(3, 6, 6)
        record.observe([5], Interval(1.0, PLAIN))
        record.unused = lookup(3, 7, 8, 9)
        record.observe([7], Interval(1.0, PLAIN))
        longer = lookup(4, 8, 9)
        record.unused = longer
        record.begin_round(longer, Draft("ngram", 2, (8, 9)))
        record.policy.observe_verification(longer, 2, 2)
        record.observe([8, 9, 1], Interval(1.1, 3))
    rates = record.policy.records["ngram"].acceptance.rates()
    assert 0.35 < rates[0] < 0.65 < rates[1]


def test_rows_of_a_batch_are_compared_with_one_plain_step_of_its_longest():
    speculator = Speculator([])
    rows = [
        Row(row, Request(str(row), (1,)), [1] * tokens, 9_999, Clock(0.0))
        for row, tokens in enumerate((40, 900))
    ]
    interval = Interval(0.1, PLAIN, rows=2)
    for _ in range(4):
        timed = speculator.observe_pass(rows, interval)
        for row in rows:
            speculator.observe_commit(row, [5], timed)
    assert timed.plain_s == speculator.cost_model.plain_step(2, 900) > 0
    assert [speculator.speedup(row) for row in rows] == [pytest.approx(1.0)] * 2
    faster = replace(timed, seconds=0.05)
    speculator.observe_commit(rows[0], [5], faster)
    speedup = speculator.speedup(rows[0])
    assert speedup is not None
    assert speedup > 1.0


def test_steps_that_differ_from_their_estimates_are_uneven():
    speculator = Speculator([])
    rows = [Row(n, Request(str(n), (1,)), [1] * 40, 9_999, Clock(0.0)) for n in range(2)]
    for _ in range(4):
        even = speculator.observe_pass(rows, Interval(0.1, PLAIN, rows=2))
        speculator.observe_commit(rows[0], [5], even)
    assert speculator.step_deviation(rows[0]) == pytest.approx(0.0)
    for _ in range(8):
        speculator.observe_commit(rows[0], [5], replace(even, seconds=0.5))
    assert speculator.step_deviation(rows[0]) > MAX_STEP_DEVIATION
