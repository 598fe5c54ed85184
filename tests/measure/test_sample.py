"""The meter: what is counted, between which moments; answers compared token by token."""

from __future__ import annotations

from math import isnan

from omlx.measure.sample import Meter, Sample, checksum, compare, first_difference, total


def sample(counted: int, seconds: float = 1.0, proposed: int = 0, accepted: int = 0) -> Sample:
    tokens = ((1,) * counted,)
    return Sample(tokens, counted, seconds, seconds / 2, 2 * seconds, proposed, accepted)


def test_the_clock_starts_when_every_row_has_tokens_and_stops_when_one_ends() -> None:
    meter = Meter(2)
    assert not meter.would_start([0, 0])
    meter.add({0: (1, 2)}, ended=False)
    assert meter.would_start([1])
    meter.add({0: (3,), 1: (1,)}, ended=False)
    assert not meter.would_start([0, 1])
    meter.add({0: (4,), 1: (2, 3)}, ended=False)
    meter.add({0: (5,), 1: (4,)}, ended=True)
    meter.add({1: (5,)}, ended=True)
    measured = meter.sample(proposed=4, accepted=1)
    assert measured.tokens == ((1, 2, 3, 4, 5), (1, 2, 3, 4, 5))
    assert measured.counted == 5
    assert 0 < measured.seconds <= measured.total_s
    assert measured.acceptance_rate == 0.25


def test_a_run_without_a_second_step_counts_nothing() -> None:
    meter = Meter(1)
    meter.add({0: (1,)}, ended=True)
    assert meter.sample().counted == 0
    assert meter.sample().seconds == 0.0
    assert isnan(meter.sample().rate)
    assert meter.sample().acceptance_rate is None


def test_samples_add_up() -> None:
    whole = total([sample(2, 1.0, 4, 1), sample(3, 2.0, 4, 3)])
    assert whole.counted == 5
    assert whole.seconds == 3.0
    assert whole.acceptance_rate == 0.5
    assert whole.total_s == 6.0
    assert [len(tokens) for tokens in whole.tokens] == [2, 3]


def test_first_difference() -> None:
    assert first_difference((1, 2, 3), (1, 2, 3)) is None
    assert first_difference((1, 2, 3), (1, 5, 3)) == 1
    assert first_difference((1, 2), (1, 2, 3)) == 2


def test_equal_answers_are_counted_and_the_first_difference_is_kept() -> None:
    answers = [("a", (1, 2), (1, 2)), ("b", (1, 2), (1, 3)), ("c", (1,), (2,))]
    exactness = compare(answers)
    assert (exactness.same, exactness.of) == (1, 3)
    assert exactness.first == ("b", 1)
    assert compare(answers[:1]).first is None


def test_a_checksum_depends_on_tokens_and_on_the_ends_of_answers() -> None:
    assert checksum([(1, 2), (3,)]) == checksum([[1, 2], [3]])
    assert checksum([(1, 2), (3,)]) != checksum([(1,), (2, 3)])
    assert checksum([(1, 2)]) != checksum([(1, 3)])
