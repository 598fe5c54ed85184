"""The oracle of prompt lookup: its reach against a naive search, its rounds and times by hand."""

from __future__ import annotations

import random

import pytest

from lab.bench.oracle import Bound, RoundCosts, bound, break_even, copied, reach, speedup_at

LINEAR = RoundCosts(1.0, (2, 65), (2.0, 65.0))
FREE = RoundCosts(1.0, (2, 65), (1.0, 1.0))


def naive(prompt: list[int], answer: list[int]) -> list[int]:
    """Return for every place the longest run of the answer after an earlier last three tokens."""
    known, found = prompt + answer, []
    for here in range(len(prompt), len(known)):
        best = 0
        for at in range(3, here):
            if known[at - 3 : at] == known[here - 3 : here]:
                n = 0
                while here + n < len(known) and n < 64 and known[at + n] == known[here + n]:
                    n += 1
                best = max(best, n)
        found.append(best)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_reach_is_that_of_a_naive_search(seed: int) -> None:
    rng = random.Random(seed)
    prompt = [rng.randrange(4) for _ in range(rng.randrange(3, 40))]
    answer = [rng.randrange(4) for _ in range(rng.randrange(1, 40))]
    assert reach(prompt, answer) == naive(prompt, answer)


def test_what_stood_before_is_copied_whole() -> None:
    prompt = [1, 2, 3, 4, 5, 6, 7, 8]
    answer = [1, 2, 3, 4, 5, 6, 7, 8]
    reaches = reach(prompt, answer)
    assert reaches == [0, 0, 0, 5, 4, 3, 2, 1]
    assert copied(reaches) == 5
    found = bound(prompt, answer, FREE)
    # Given: 1. Plain: 2, 3. Then one round brings 4 5 6 7 and, as its bonus, 8.
    assert (found.tokens, found.rounds, found.plain_s, found.oracle_s) == (7, 3, 7.0, 3.0)
    assert found.speedup == pytest.approx(7 / 3)


def test_a_share_allows_what_its_best_window_brings() -> None:
    costs = RoundCosts(1.0, (2, 3, 5), (1.0, 1.2, 4.0))
    # Three tokens in 1.2 s, each right with a half: 1 + 1/2 + 1/4.
    assert speedup_at(0.5, costs) == pytest.approx(1.5)
    assert speedup_at(0.9, costs) == pytest.approx((1 + 0.9 + 0.81) / 1.2)
    assert speedup_at(1.0, LINEAR) == speedup_at(0.0, FREE) == 1.0


def test_what_was_there_when_the_clock_started_is_no_part_of_it() -> None:
    prompt = answer = [1, 2, 3, 4, 5, 6, 7, 8]
    assert copied(reach(prompt, answer), given=4) == 4
    found = bound(prompt, answer, FREE, given=4)
    # Given: 1 2 3 4. One round brings 5 6 7 and 8.
    assert found.tokens == 4
    assert found.copied == 4
    assert found.rounds == 1
    assert found.plain_s == 4.0
    assert found.oracle_s == 1.0
    assert bound(prompt, answer, FREE, given=9) == Bound()


def test_a_pass_that_costs_its_rows_gains_nothing() -> None:
    found = bound([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6], LINEAR)
    assert found.oracle_s == found.plain_s == 5.0
    assert found.coverage > 0


def test_the_cheapest_rounds_are_taken_not_the_longest() -> None:
    costly = RoundCosts(1.0, (2, 3, 4), (1.0, 1.0, 9.0))
    found = bound([1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6, 7], costly)
    # After 1 2 3 four tokens could be copied: a round over two brings three, a plain step the last.
    assert (found.rounds, found.oracle_s) == (4, 4.0)


def test_text_without_repetition_has_no_bound_but_plain() -> None:
    found = bound(range(10), range(10, 30), FREE)
    assert (found.coverage, found.speedup, found.rounds) == (0.0, 1.0, 19)


def test_empty_answers_and_sums() -> None:
    nothing = bound([1, 2, 3], [], FREE)
    assert nothing == bound([1, 2, 3], [4], FREE) == Bound()
    assert (nothing.coverage, nothing.speedup) == (0.0, 1.0)
    assert Bound(4, 2, 1, 4.0, 2.0) + Bound(6, 1, 3, 6.0, 3.0) == Bound(10, 3, 4, 10.0, 5.0)


def test_costs_between_and_behind_what_was_measured() -> None:
    costs = RoundCosts(1.0, (2, 4), (1.5, 1.7))
    assert [costs.verify(width) for width in (1, 2, 3, 4, 6)] == pytest.approx(
        [1.0, 1.5, 1.6, 1.7, 1.9]
    )
    assert RoundCosts(1.0, (2, 4), (1.5, 1.3)).verify(64) == pytest.approx(1.5)


def test_break_even() -> None:
    assert break_even(1, 1.3, 1.0) == pytest.approx(0.3)
    assert break_even(2, 1.75, 1.0) == pytest.approx(0.5)
    assert break_even(3, 1.0, 1.0) == pytest.approx(0.0, abs=1e-6)
    assert break_even(3, 4.0, 1.0) == pytest.approx(1.0)
    assert break_even(3, 4.1, 1.0) is None
