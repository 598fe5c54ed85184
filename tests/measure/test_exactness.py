"""Answers compared token by token."""

from __future__ import annotations

from omlx.measure.exactness import Difference, checksum, compare, first_difference


def test_first_difference() -> None:
    assert first_difference((1, 2, 3), (1, 2, 3)) is None
    assert first_difference((1, 2, 3), (1, 5, 3)) == 1
    assert first_difference((1, 2), (1, 2, 3)) == 2


def test_equal_answers_are_counted_and_the_first_difference_is_kept() -> None:
    answers = [("a", (1, 2), (1, 2)), ("b", (1, 2), (1, 3)), ("c", (1,), (2,))]
    exactness = compare(answers)
    assert (exactness.same, exactness.of) == (1, 3)
    assert exactness.first == Difference("b", 1)
    assert compare(answers[:1]).first is None


def test_a_checksum_depends_on_tokens_and_on_the_ends_of_answers() -> None:
    assert checksum([(1, 2), (3,)]) == checksum([[1, 2], [3]])
    assert checksum([(1, 2), (3,)]) != checksum([(1,), (2, 3)])
    assert checksum([(1, 2)]) != checksum([(1, 3)])
