"""What a row's steps teach about lookups that were not used."""

from omlx.engine.sequence import Clock, Interval, Sequence
from omlx.engine.speculation.cost_model import PLAIN, CostModel
from omlx.engine.speculation.policy import History, RowPolicy
from omlx.engine.speculation.proposal import Draft, Proposal
from omlx.engine.speculation.row_record import RowRecord
from omlx.engine.types import Request


def lookup(match: int, *tokens: int) -> Proposal:
    return Proposal("ngram", len(tokens), match=match, tokens=tokens)


def test_an_unused_lookup_counts_where_the_next_match_is_drafted():
    """Every second lookup of three tokens is right, and the match of four behind it is drafted."""
    sequence = Sequence(0, Request("a", (1,)), [1], 9, Clock(0.0))
    row = RowRecord(sequence, RowPolicy(CostModel(), History()), [], {}, {})
    for _ in range(10):
        row.unused = lookup(3, 6, 6)
        row.observe([5], Interval(1.0, PLAIN))
        row.unused = lookup(3, 7, 8, 9)
        row.observe([7], Interval(1.0, PLAIN))
        longer = lookup(4, 8, 9)
        row.unused = longer
        row.begin_round(longer, Draft("ngram", 2, (8, 9)))
        row.policy.observe_verification(longer, 2, 2)
        row.observe([8, 9, 1], Interval(1.1, 3))
    rates = row.policy.records["ngram"].acceptance.rates()
    assert 0.35 < rates[0] < 0.65 < rates[1]
