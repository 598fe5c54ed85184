"""The index against the tokens that its pieces stand for, and a list of all insertions."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise

import pytest

from omlx.engine.piece import Layout, Piece
from omlx.engine.prefix.index import PrefixIndex, PrefixMatch
from tests.engine.harness import common
from tests.lanes import few

ROWS = Layout(row_bytes=2)
SLIDING = Layout(row_bytes=2, window_bytes=3, window=10)
RECURRENT = Layout(row_bytes=2, state_bytes=40, recurrent=True)
BOTH = Layout(row_bytes=0, window_bytes=3, window=10, state_bytes=20, recurrent=True)
LAYOUTS = {"rows": ROWS, "sliding": SLIDING, "recurrent": RECURRENT, "both": BOTH}
PLENTY = 1 << 30


class Shelf:
    """An index with what its pieces would hold: the tokens themselves."""

    def __init__(self, layout: Layout, max_bytes: int = PLENTY, block: int = 4) -> None:
        self.index = PrefixIndex(layout, block, max_bytes)
        self.held: dict[int, tuple[Piece, tuple[int, ...]]] = {}
        self.inserted: list[tuple[int, ...]] = []
        self._owner = 0

    def insert(self, tokens: Sequence[int], *, hold: bool = False) -> tuple[Piece, ...]:
        pieces = self.put(tokens, hold=hold)
        self.inserted.append(tuple(tokens))
        self.check()
        return pieces

    def put(
        self, tokens: Sequence[int], room: int | None = None, *, hold: bool = False
    ) -> tuple[Piece, ...]:
        """Insert without a check of the whole index."""
        self._owner += 1
        pieces, gone = self.index.insert(self._owner, tokens, room)
        self.drop(gone)
        for piece in pieces:
            assert piece.stop <= len(tokens)
            start = 0 if piece.kind == "state" else piece.start
            self.held[piece.id] = (piece, tuple(tokens[start : piece.stop]))
        if not hold:
            self.index.release(self._owner)
        return pieces

    def drop(self, ids: Iterable[int]) -> None:
        for id in ids:
            del self.held[id]

    def match(self, tokens: Sequence[int]) -> int:
        """The length of the match, whose pieces are proven to hold just the right tokens."""
        found = self.index.match(tokens)
        if found is None:
            return 0
        self._prove(found, tokens)
        self._owner += 1
        self.index.use(self._owner, found)
        self.index.release(self._owner)
        return found.length

    def check(self) -> None:
        self.index.check()
        assert {piece.id for piece in self.index.pieces} == set(self.held)

    def _prove(self, found: PrefixMatch, tokens: Sequence[int]) -> None:
        layout, length = self.index.layout, found.length
        parts = sorted((self.held[id] for id in found.pieces), key=lambda part: part[0].start)
        assert 0 < length < len(tokens)

        def spelled(kind: str) -> tuple[int, list[int]]:
            mine = [part for part in parts if part[0].kind == kind]
            for (one, _), (next_one, _) in pairwise(mine):
                assert one.stop == next_one.start
            start = mine[0][0].start if mine else 0
            return start, list(chain.from_iterable(held for _, held in mine))

        assert spelled("rows") == (0, [*tokens[:length], *spelled("rows")[1][length:]])
        if layout.window is not None:
            start, rows = spelled("window")
            assert start <= max(0, length - layout.window)
            assert rows[: length - start] == list(tokens[start:length])
        if layout.recurrent:
            assert spelled("state")[1] == list(tokens[:length])


def longest(shelf: Shelf, tokens: Sequence[int]) -> tuple[int, int]:
    """Return the longest common prefix with any insertion, and the longest whole insertion."""
    commons = [common(tokens[:-1], held) for held in shelf.inserted]
    whole = [n for n, held in zip(commons, shelf.inserted, strict=True) if n == len(held)]
    return max(commons, default=0), max(whole, default=0)


def branching(chance: random.Random, shelf: Shelf) -> list[int]:
    """A sequence that often begins like one before."""
    start = list(chance.choice(shelf.inserted))[: chance.randint(0, 40)] if shelf.inserted else []
    return [*start, *(chance.randint(0, 2) for _ in range(chance.randint(1, 25)))]


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("seed", few(range(12), 0, 5))
def test_with_room_for_all_the_best_is_found(layout: Layout, seed: int) -> None:
    chance, shelf = random.Random(seed), Shelf(layout)
    for _ in range(60):
        shelf.insert(branching(chance, shelf))
        wanted = [*branching(chance, shelf), 9]
        common_length, whole = longest(shelf, wanted)
        found = shelf.match(wanted)
        if layout.resumes_anywhere:
            assert found == common_length
        elif layout.recurrent:
            assert found == whole
        else:
            assert whole <= found <= common_length


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("seed", few(range(12), 0, 5))
def test_under_a_limit_what_is_found_is_right(layout: Layout, seed: int) -> None:
    chance, shelf = random.Random(seed), Shelf(layout, max_bytes=600)
    found = 0
    for _ in range(200):
        shelf.insert(branching(chance, shelf))
        assert shelf.index.nbytes <= 600
        wanted = [*branching(chance, shelf), 9]
        length = shelf.match(wanted)
        assert length <= longest(shelf, wanted)[0]
        found += length
        if chance.random() < 0.1 and shelf.held:
            shelf.drop(shelf.index.forget([chance.choice(sorted(shelf.held))]))
            shelf.check()
    assert found > 30
    shelf.drop(shelf.index.clear())
    shelf.check()
    assert not shelf.held
    assert shelf.index.nbytes == 0


@pytest.mark.parametrize("layout", few(LAYOUTS.values(), RECURRENT), ids=LAYOUTS)
def test_three_thousand_requests_over_three_hundred_shared_prefixes(layout: Layout) -> None:
    chance, shelf = random.Random(1), Shelf(layout, max_bytes=10_000, block=8)
    prefixes = [[i, *(chance.randint(0, 99) for _ in range(30))] for i in range(300)]
    hits = 0
    for _ in range(3_000):
        start = prefixes[min(299, int(chance.expovariate(1 / 60)))]
        wanted = [*start, *(chance.randint(0, 99) for _ in range(12))]
        hits += shelf.match(wanted) >= len(start)
        shelf.put(start)
        shelf.put(wanted)
        assert shelf.index.nbytes <= 10_000
    shelf.check()
    assert hits > 300
    assert shelf.index.counts.evicted.total() > 1_000


def test_shared_tokens_are_kept_once() -> None:
    shelf = Shelf(ROWS)
    shelf.insert(range(40))
    assert shelf.index.nbytes == 80
    assert shelf.insert(range(40)) == ()
    assert sum(piece.tokens for piece in shelf.insert([*range(32), 7, 7])) == 2
    assert sum(piece.tokens for piece in shelf.insert(range(43))) == 3
    assert shelf.index.nbytes == 80 + 4 + 6


def test_windows_that_overlap_share_their_rows() -> None:
    shelf = Shelf(SLIDING)
    shelf.insert(range(20))
    more = shelf.insert(range(23))
    assert sum(piece.tokens for piece in more if piece.kind == "window") == 3
    assert shelf.match([*range(22), 99]) == 22
    assert shelf.match([*range(15), 99]) == 0  # rows 5 to 9 of its window were never kept


def test_a_state_is_found_in_any_branch() -> None:
    """Two answers to one prompt part within a block; a third request sees only the prompt."""
    shelf = Shelf(RECURRENT, block=16)
    shelf.insert(range(10))
    shelf.insert([*range(10), 50, 51])
    shelf.insert([*range(10), 40, 41])
    for last in (39, 45, 55):
        assert shelf.match([*range(10), last]) == 10


def test_eviction_takes_the_least_valuable_first() -> None:
    shelf = Shelf(ROWS, max_bytes=100)
    shelf.insert([1] * 20)
    shelf.insert([2] * 20)
    shelf.match([1] * 21)
    shelf.insert([3] * 20)
    assert shelf.match([1] * 21) == 20
    assert shelf.match([2] * 21) < 20
    states = Shelf(RECURRENT, max_bytes=200)
    states.insert([1] * 10)
    states.insert([1] * 12)  # spares only two tokens for as many bytes
    states.insert([1] * 30)
    states.insert([1] * 40)
    kept = {piece.stop for piece in states.index.pieces if piece.kind == "state"}
    assert 12 not in kept
    assert 40 in kept


def test_held_blocks_stay() -> None:
    shelf = Shelf(ROWS, max_bytes=100)
    shelf.insert([1] * 40, hold=True)
    assert (
        shelf.insert([2] * 20) == (Piece(shelf.index.pieces[-1].id, "rows", 0, 4),)
        or shelf.match([1] * 41) == 40
    )
    assert shelf.match([1] * 41) == 40
    shelf.index.release(1)
    shelf.insert([3] * 40)
    assert shelf.match([1] * 41) < 40


@pytest.mark.parametrize("layout", [ROWS, RECURRENT])
def test_more_than_there_is_room_for_is_cut_short_or_refused(layout: Layout) -> None:
    shelf = Shelf(layout, max_bytes=100)
    shelf.insert(range(300))
    assert shelf.match(range(300)) == (48 if layout is ROWS else 0)
    assert shelf.index.counts.refused == (layout is RECURRENT)


def test_states_are_saved_as_often_as_they_cost() -> None:
    assert Layout(row_bytes=1000, state_bytes=3_000_000, recurrent=True).interval == 3000
    assert Layout(row_bytes=10**6, state_bytes=1, recurrent=True).interval == 512
    assert Layout(row_bytes=0, state_bytes=1, recurrent=True).interval == 1 << 14


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("seed", few(range(4), 2))
def test_the_size_stays_within_the_memory_budget(layout: Layout, seed: int) -> None:
    """The size grows by `room` at most, or shrinks by what is lacking, but for locked blocks."""
    chance, shelf = random.Random(seed), Shelf(layout)
    for _ in range(100):
        before, room = shelf.index.nbytes, chance.choice([None, 0, 30, 200, 1000, -30, -400])
        shelf.inserted.append(tuple(tokens := branching(chance, shelf)))
        shelf.put(tokens, room)
        shelf.check()
        held = (len(tokens) + 4) * (layout.row_bytes + layout.window_bytes)
        assert room is None or shelf.index.nbytes <= max(before + room, held if room < 0 else 0)
    assert shelf.index.counts.stored.total() > 50
    assert shelf.index.counts.evicted.total() > 10
