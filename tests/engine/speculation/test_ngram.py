"""Lookups: what is found, what is proposed, and where a proposal ends."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from omlx.engine.speculation.drafters.ngram import (
    BARRIER,
    LONG_MATCH,
    MAX_MATCH,
    MAX_POSITIONS,
    NgramDrafter,
    NgramIndex,
    NgramMatch,
)
from omlx.engine.speculation.strategy import Clause, parse
from omlx.engine.step.row import Clock, Row
from omlx.engine.types import Request, Speculation
from omlx.engine.vision.spans import image_ids

CLAUSE = Clause("ngram")


def naive(tokens: list[int]) -> NgramMatch | None:
    """The newest of the longest matches (long ones are equal) with the most common next token."""
    size, lengths = len(tokens), dict[int, int]()
    places = [at for at in range(size - 1, 2, -1) if tokens[at - 3 : at] == tokens[size - 3 :]]
    for at in places[:MAX_POSITIONS]:
        length = 0
        while (
            length < min(MAX_MATCH, at)
            and tokens[at - 1 - length] == tokens[size - 1 - length] != BARRIER
        ):
            length += 1
        lengths[at] = length
    longest = min(LONG_MATCH, max(lengths.values(), default=0))
    equals = [at for at, length in lengths.items() if length >= longest]
    said = [tokens[at] for at in equals]
    at = max(
        equals,
        key=lambda at: (
            said.count(tokens[at]),
            max(a for a in equals if tokens[a] == tokens[at]),
            at,
        ),
        default=0,
    )
    return NgramMatch(at, lengths[at]) if at else None


@pytest.mark.parametrize("letters", [1, 2, 3, 6])
@pytest.mark.parametrize("seed", range(3))
def test_a_lookup_finds_what_a_search_finds(letters: int, seed: int) -> None:
    rng, index = random.Random(f"{letters} {seed}"), NgramIndex()
    while len(index.tokens) < 500:
        if rng.random() < 0.2 and len(index.tokens) > 90:
            at = rng.randrange(len(index.tokens) - 80)
            index.extend(index.tokens[at : at + rng.randint(10, 80)])
        else:
            index.extend([rng.randrange(letters) for _ in range(rng.choice((0, 1, 2, 7)))])
        assert index.lookup() == naive(index.tokens)


def test_in_a_run_of_one_token_the_end_of_an_earlier_run_is_not_predicted_at_every_step() -> None:
    runs = [1, *20 * [7], 2, *30 * [7], 3]
    foreseen = []
    for n in range(3, 18):
        index = NgramIndex(runs + n * [7])
        match = index.lookup()
        if match is not None:
            foreseen.append(index.after(match, 1))
    assert foreseen == 15 * [(7,)]


def test_of_two_matches_that_say_enough_the_newer_one_counts() -> None:
    same = list(range(100, 100 + LONG_MATCH))
    assert NgramIndex([5, *same, 1, 6, *same, 2, 5, *same]).lookup() == NgramMatch(
        2 * LONG_MATCH + 3, LONG_MATCH
    )
    assert NgramIndex([5, *same[1:], 1, 6, *same[1:], 2, 5, *same[1:]]).lookup() == NgramMatch(
        LONG_MATCH, LONG_MATCH
    )


def test_a_match_that_reaches_the_end_of_the_text_continues_with_its_own_tokens() -> None:
    index = NgramIndex([1, 2, 3, 1, 2, 3])
    found = index.lookup()
    assert found == NgramMatch(3, 3)
    assert index.after(found, 8) == (1, 2, 3, 1, 2, 3, 1, 2)


def record(
    tokens: tuple[int, ...],
    prediction: tuple[int, ...] = (),
    stop_ids: frozenset[int] = frozenset(),
) -> Row:
    request = Request(
        "a", tokens, stop_ids=stop_ids, speculation=Speculation(prediction=prediction)
    )
    return Row(1, request, list(tokens), 1000, Clock(0.0))


def proposed(row: Row, limit: int, clause: Clause = CLAUSE) -> tuple[int, ...]:
    """Return the draft, and check that the proposal announced it."""
    drafter = NgramDrafter()
    if (proposal := drafter.propose(row, limit, clause)) is None:
        assert drafter.draft(row, limit) is None
        return ()
    draft = drafter.draft(row, proposal.max_length)
    assert proposal.max_length == draft.n == len(draft.tokens) <= limit
    assert proposal.tokens == draft.tokens
    return draft.tokens


def test_a_proposal_is_as_long_as_what_followed() -> None:
    row = record((1, 2, 3, 4, 5, 6, 7, 1, 2, 3))
    assert proposed(row, 4) == (4, 5, 6, 7)
    assert proposed(row, 99)[:9] == (4, 5, 6, 7, 1, 2, 3, 4, 5)
    assert proposed(row, 0) == ()
    assert proposed(record((1, 2, 3)), 9) == proposed(record((1,)), 9) == ()


@pytest.mark.parametrize("shortest", [None, 3, 5, 8])
def test_a_match_is_at_least_as_long_as_asked_for(shortest: int | None) -> None:
    proposal = NgramDrafter().propose(
        record((9, 1, 2, 3, 4, 5, 7, 8, 1, 2, 3, 4, 5)), 2, Clause("ngram", shortest)
    )
    assert (proposal and proposal.tokens) == (None if shortest == 8 else (7, 8))


@pytest.mark.parametrize(
    ("strategy", "coming"), [("ngram:n=24", 1), ("ngram:n=16", 2), ("auto", 2)]
)
def test_where_long_matches_are_asked_for_shorter_ones_do_not_outvote_them(
    strategy: str, coming: int
) -> None:
    same = range(100, 130)
    row = record((*same, 1, 5, *same[10:], 2, 6, *same[10:], 2, 7, *same))
    asked = parse(strategy)
    row.request = replace(row.request, speculation=Speculation(asked))
    proposal = NgramDrafter().propose(row, 1, asked.clauses[0])
    assert (proposal.tokens, proposal.match) == ((coming,), 30 if coming == 1 else 20)


def test_a_prediction_is_looked_into_as_far_as_it_goes() -> None:
    prediction = (1, 2, 3, 4, 5, 6)
    assert proposed(record((8, 1, 2, 3), prediction), 9) == (4, 5, 6)
    assert proposed(record((8, 9, 4, 5, 6), prediction), 9) == (), (
        "nothing follows it, the prompt least of all"
    )


def test_nothing_is_proposed_behind_what_ends_the_answer() -> None:
    tokens = (1, 2, 3, 4, 50, 6, 51, 7, 1, 2, 3)
    assert proposed(record(tokens, stop_ids=frozenset({50, 51})), 9) == (4, 50)
    assert proposed(record((50, 2, 3, 4, 50, 2, 3), stop_ids=frozenset({50})), 9) == (4, 50)


def test_an_index_follows_its_row_and_is_gone_with_it() -> None:
    drafter, row = NgramDrafter(), record((1, 2, 3, 4))
    assert drafter.draft(row, 4) is None
    row.tokens += [9, 1, 2, 3]
    draft = drafter.draft(row, 2)
    assert draft.tokens == (4, 9)
    drafter.drop(row.id)
    other = record((5, 1, 2, 3))
    assert drafter.draft(other, 2) is None


def test_no_match_extends_across_an_image() -> None:
    seen = [*image_ids("cat", 0, 4), 5, 6, 7, 8]
    index = NgramIndex([1, 2, 3, *seen, 9, 1, 2, 3, *seen[:-2]])
    assert index.lookup() is None  # the last three tokens are one of the image, 5 and 6
    index.extend([7])
    match = index.lookup()
    assert match == NgramMatch(at=10, length=3)
    assert index.after(match, 8) == (8, 9, 1, 2, 3)  # up to the image
