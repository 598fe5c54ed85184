"""The acceptance rate of the next draft token."""

import pytest

from omlx.engine.speculation.acceptance import Acceptance, bin_of
from omlx.engine.speculation.config import CONFIG

MATCH_RATES, DRAFT_RATES = CONFIG.match_rates, (CONFIG.draft_rate,)


def test_slots_of_a_match_grow_with_what_was_accepted():
    assert [bin_of(3, i) for i in (0, 1, 2, 3, 6, 14, 30, 99)] == [0, 1, 2, 3, 6, 8, 9, 9]


def test_slots_of_a_draft_model_are_positions():
    assert [bin_of(0, i) for i in (0, 1, 15, 40)] == [0, 1, 15, 15]


def test_before_anything_is_seen_the_start_counts():
    assert Acceptance(DRAFT_RATES).rates()[:2] == pytest.approx([DRAFT_RATES[0]] * 2)
    assert Acceptance(MATCH_RATES).rates()[: len(MATCH_RATES)] == pytest.approx(list(MATCH_RATES))


def test_behind_the_first_miss_nothing_is_learned():
    one, other = Acceptance(MATCH_RATES), Acceptance(MATCH_RATES)
    one.learn(3, 1, 0)
    other.learn(3, 40, 0)
    assert one.rates() == other.rates()


@pytest.mark.parametrize(("accepted", "expected"), [(4, 0.98), (0, 0.02)])
def test_counts_take_over(accepted, expected):
    acceptance = Acceptance(DRAFT_RATES)
    for _ in range(200):
        acceptance.learn(0, 4, accepted)
    assert acceptance.rates()[0] == pytest.approx(expected, abs=0.1)


def test_a_change_shows_within_some_twenty_drafts():
    acceptance = Acceptance(DRAFT_RATES, Acceptance(DRAFT_RATES))
    for _ in range(200):
        acceptance.learn(0, 1, 1)
    for _ in range(25):
        acceptance.learn(0, 1, 0)
    assert acceptance.rates()[0] < 0.55


def test_a_deep_position_that_is_no_longer_tried_comes_back_to_the_level():
    acceptance = Acceptance(DRAFT_RATES, Acceptance(DRAFT_RATES))
    for _ in range(6):
        acceptance.learn(0, 2, 1)
    low = acceptance.rates()[1]
    for _ in range(200):
        acceptance.learn(0, 1, 1)
    assert low < 0.5 < acceptance.rates()[1]


def test_a_long_draft_of_a_lookup_is_one_piece_of_evidence_in_age_and_many_in_weight():
    acceptance = Acceptance(MATCH_RATES)
    acceptance.learn(40, 60, 60)
    assert acceptance.rates()[bin_of(40, 0)] > 0.99


def test_what_is_missed_nowhere_is_believed_of_places_that_were_not_tried_as_well():
    acceptance = Acceptance(MATCH_RATES)
    acceptance.learn(40, 60, 60)
    assert MATCH_RATES[0] + 0.05 < acceptance.rates()[0] < acceptance.rates()[bin_of(40, 0)]


def test_a_slot_that_always_misses_does_not_affect_the_one_before_it():
    """Records of one shape: a match of four always continues alike, a match of five never."""
    acceptance = Acceptance(MATCH_RATES)
    for _ in range(20):
        acceptance.learn(4, 2, 1)
    assert acceptance.rates()[bin_of(5, 0)] < 0.3 < 0.8 < acceptance.rates()[bin_of(4, 0)]


def test_a_request_begins_with_what_earlier_ones_saw_and_teaches_later_ones():
    history = Acceptance(DRAFT_RATES)
    for _ in range(50):
        history.learn(0, 1, 1)
    request, before = Acceptance(DRAFT_RATES, history), history.rates()[0]
    assert request.rates()[0] == pytest.approx(before)
    for _ in range(20):
        request.learn(0, 1, 0)
    assert history.rates()[0] < before


def test_a_request_starts_from_the_models_history():
    history = Acceptance(DRAFT_RATES)
    first = Acceptance(DRAFT_RATES, history)
    for _ in range(100):
        first.learn(0, 2, 0)
    assert Acceptance(DRAFT_RATES, history).rates()[0] < 0.1


def test_a_draft_reaches_as_deep_as_there_is_a_chance():
    far, doubtful = Acceptance(MATCH_RATES), Acceptance(MATCH_RATES)
    far.learn(40, 60, 60)
    assert len(far.reach(40, 1, 63)) == 64
    for _ in range(40):
        doubtful.learn(3, 1, 0)
    reach = doubtful.reach(3, 1, 63)
    assert len(reach) < 8
    assert reach[0] == 1.0
    assert reach[-1] < CONFIG.min_reach <= reach[-2]
    assert sorted(reach, reverse=True) == reach
    assert len(doubtful.reach(3, 20, 63)) == 21
