"""Which prefixes are kept, found again by their tokens: a radix tree whose nodes are blocks. Pure Python.

    root ── "You are a …" ── "… helpful agent" ─┬─ "Read a.py" (partly filled: it may grow)
                                                └─ "Fix the test" ── …

A block holds the tokens of its place, `block_tokens` of them unless it is the last of its branch, and the pieces of
caches that they left behind. A prefix that several requests share is there once; where two part inside of a block,
they share the blocks before it. Matching counts tokens, not blocks: a hit may end inside of one.

Bytes never exceed the limit. What goes first has the largest age · bytes / tokens: what nobody used for long, takes
much and is quickly computed again. Blocks go from the ends of branches; states and windows, which only decide where
a prefix can be continued, from anywhere.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from omlx.engine.piece import Kind, Layout, Piece
from omlx.engine.prefix.block import Block, alike, descend
from omlx.engine.prefix.eviction import Victims
from omlx.engine.prefix.window import gaps, spans, windows_of

SLACK: Final = 50
"""A fiftieth of the limit more than needed is freed at a time: looking for victims costs a pass over all blocks."""


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The pieces that make a cache of the first `length` tokens; `block` is where they end."""

    length: int
    pieces: tuple[int, ...]
    block: Block


@dataclass(slots=True)
class Counts:
    """Since the start; tokens where it says so, pieces by kind."""

    hits: int = 0
    misses: int = 0
    hit_tokens: int = 0
    stored: Counter[str] = field(default_factory=Counter)
    evicted: Counter[str] = field(default_factory=Counter)
    states_used: int = 0
    asked: int = 0
    refused: int = 0


class PrefixIndex:
    """`insert` says what to copy out of a cache, `match` what to build one from, both by ids of pieces."""

    def __init__(self, layout: Layout, block_tokens: int, max_bytes: int) -> None:
        self.layout = layout
        self.max_bytes = max_bytes
        self.nbytes = 0
        self.tokens = 0
        self.counts = Counts()
        self._block_tokens = block_tokens
        self._root = Block(0, (), None)
        self._blocks: set[Block] = set()
        self._held: dict[int, Block] = {}
        self._used: dict[int, int] = {}  # when a state or a window was, by id
        self._clock = 0
        self._next = 0

    @property
    def pieces(self) -> list[Piece]:
        """All that is kept, in no order."""
        return [piece for block in self._blocks for piece in block.pieces]

    # -- finding -------------------------------------------------------------------------------------------------

    def match(self, tokens: Sequence[int]) -> PrefixMatch | None:
        """The longest prefix that can be continued, leaving at least one token to compute. Modifies nothing."""
        path, top = descend(self._root, tokens, self._block_tokens), len(tokens) - 1
        # Blocks that part from one another later may each hold another state of what they share: look at all of them.
        for i in range(len(path), -1, -1):
            near = self._near(path[:i], tokens)
            found = [
                match
                for block, n in near
                if (match := self._within([*path[:i], block], block.start + n, top))
            ]
            if found:
                return max(found, key=lambda match: match.length)
        return None

    def use(self, owner: int, found: PrefixMatch | None) -> None:
        """Count a hit, or a miss; the blocks of a hit stay until `release(owner)`."""
        self._clock += 1
        if found is None:
            self.counts.misses += 1
            return
        self.counts.hits += 1
        self.counts.hit_tokens += found.length
        self.counts.states_used += self.layout.recurrent
        self._touch(found.pieces)
        self._hold(owner, found.block)

    def release(self, owner: int) -> None:
        if (held := self._held.pop(owner, None)) is not None:
            for block in held.upwards():
                block.locks -= 1

    # -- keeping -------------------------------------------------------------------------------------------------

    def insert(
        self, owner: int, tokens: Sequence[int], room: int | None = None
    ) -> tuple[tuple[Piece, ...], tuple[int, ...]]:
        """Keep what a cache of exactly `tokens` holds. Returns the pieces to copy out of it, and what to evict first.

        Nothing is kept where that cannot be continued, or where there is no room: `room` says by how many bytes all
        that is kept may grow now, or has to shrink, if the limit is not the only bound. `owner` holds the blocks.
        """
        self._clock += 1
        self.counts.asked += 1
        path = descend(self._root, tokens, self._block_tokens)
        # The last block may grow, or reach further than the tokens do; where they part from it, a sibling is needed.
        near = self._near(path, tokens)
        path += [
            block
            for block, same in near
            if same == min(len(block.tokens), len(tokens) - block.start)
        ][:1]
        if path:
            self._hold(owner, path[-1])
        spared = {piece.id for piece in windows_of(path, len(tokens), self.layout.window)}
        self._touch(spared)
        wanted = self._missing(path, len(tokens))
        top = self.max_bytes if room is None else max(0, min(self.max_bytes, self.nbytes + room))
        gone = self._make_room(self._bytes(wanted), spared, top)
        pieces = self._that_fit(wanted, top)
        self.counts.refused += bool(wanted) and not pieces
        self._attach(path, pieces, tokens)
        if path:
            self._hold(owner, path[-1])
        return tuple(pieces), tuple(gone)

    def evict(self, max_bytes: int) -> tuple[int, ...]:
        """Shrink to at most so many bytes, whoever holds them. Returns the ids of what goes."""
        return tuple(self._shrink(max_bytes, set(), held_too=True))

    def clear(self) -> tuple[int, ...]:
        """Forget everything. Returns the ids of what goes."""
        self._held.clear()
        return tuple(piece for child in list(self._root.children) for piece in self._cut(child))

    def forget(self, pieces: Iterable[int]) -> tuple[int, ...]:
        """Some pieces are not there after all: they go, and what cannot be read without them. Returns all ids."""
        lost, gone = set(pieces), list[int]()
        for block in list(self._blocks):
            if block in self._blocks and any(piece.id in lost for piece in block.rows):
                gone += self._cut(block)
        for block in self._blocks if lost else ():
            gone += [self._remove(block, piece) for piece in block.extras if piece.id in lost]
        return tuple(gone)

    def check(self) -> None:
        """Raise AssertionError if the tree contradicts itself or its bytes. Called after every request in tests."""
        assert set(self._root.below()) - {self._root} == self._blocks
        assert len({piece.id for piece in self.pieces}) == len(self.pieces)
        assert self.nbytes == self._bytes(self.pieces) <= self.max_bytes, self.nbytes
        assert self.tokens == sum(len(block.tokens) for block in self._blocks)
        assert {piece.id for block in self._blocks for piece in block.extras} == set(self._used)
        for block in self._blocks:
            block.check(self._block_tokens)
        assert all(block.locks for held in self._held.values() for block in held.upwards())

    # -- inside --------------------------------------------------------------------------------------------------

    def _near(self, path: Sequence[Block], tokens: Sequence[int]) -> list[tuple[Block, int]]:
        """Blocks behind `path` that begin as `tokens` go on, and for how long, the most alike first."""
        node = path[-1] if path else self._root
        wanted = tuple(tokens[node.stop : node.stop + self._block_tokens])
        return alike(node, wanted, all_of_them=not self.layout.resumes_anywhere)

    def _within(self, path: Sequence[Block], stop: int, top: int) -> PrefixMatch | None:
        """The longest match that ends in the last block of `path`, up to `stop` and `top`."""
        block, stop = path[-1], min(stop, top)
        ends = {stop} if stop > block.start else set()
        if self.layout.recurrent:
            ends = {end for end in block.states if end <= stop}
        elif self.layout.window is not None:
            ends |= {piece.stop for piece in block.windows if piece.stop <= stop}
        for length in sorted(ends, reverse=True):
            windows = windows_of(path, length, self.layout.window)
            if not any(gaps(windows, length, self.layout.window, self._block_tokens)):
                rows = [piece for block in path for piece in block.rows if piece.start < length]
                state = [block.states[length]] if self.layout.recurrent else []
                return PrefixMatch(
                    length, tuple(piece.id for piece in (*rows, *windows, *state)), block
                )
        return None

    def _missing(self, path: Sequence[Block], length: int) -> list[Piece]:
        """What is not there yet of a prefix that may be continued at `length`: rows, in order, and what goes along."""
        n, window = self._block_tokens, self.layout.window
        missing = [
            self._piece("rows", *span) for span in spans(path[-1].stop if path else 0, length, n)
        ]
        missing += [
            self._piece("window", *gap)
            for gap in gaps(windows_of(path, length, window), length, window, n)
        ]
        if self.layout.recurrent and not (path and length in path[-1].states):
            before = (end for block in path for end in block.states if end < length)
            missing.append(self._piece("state", max(before, default=0), length))
        return missing

    def _piece(self, kind: Kind, start: int, stop: int) -> Piece:
        self._next += 1
        return Piece(self._next, kind, start, stop)

    def _that_fit(self, pieces: list[Piece], top: int) -> list[Piece]:
        """As many as there is room for under `top`; all or nothing where a part could not be continued."""
        room, total = top - self.nbytes, self._bytes(pieces)
        while pieces and total > room and self.layout.resumes_anywhere:
            total -= self.layout.nbytes(pieces[-1])
            pieces = pieces[:-1]
        return pieces if total <= room else []

    def _attach(self, path: list[Block], pieces: Iterable[Piece], tokens: Sequence[int]) -> None:
        """Take in new pieces; `path` grows by the blocks that are made for them."""
        for piece in pieces:
            self.nbytes += self.layout.nbytes(piece)
            self.counts.stored[piece.kind] += 1
            at = (piece.stop - 1) // self._block_tokens
            if piece.kind == "rows":
                self._attach_rows(path, at, piece, tokens)
                continue
            self._used[piece.id] = self._clock
            if piece.kind == "window":
                insort(path[at].windows, piece, key=lambda held: held.start)
            else:
                path[at].states[piece.stop] = piece

    def _attach_rows(self, path: list[Block], at: int, piece: Piece, tokens: Sequence[int]) -> None:
        held = tuple(tokens[at * self._block_tokens : piece.stop])
        if at == len(path):
            parent = path[-1] if path else self._root
            block = Block(at * self._block_tokens, held, parent)
            parent.children.insert(parent.place(held), block)
            self._blocks.add(block)
            path.append(block)
        else:  # the last one, partly filled: no sibling begins with its tokens, so it keeps its place among them
            path[at].tokens = held
        path[at].rows.append(piece)
        self.tokens += piece.tokens

    def _touch(self, pieces: Iterable[int]) -> None:
        self._used.update({piece: self._clock for piece in pieces if piece in self._used})

    def _hold(self, owner: int, block: Block) -> None:
        for held in block.upwards():
            held.locks += 1
            held.used = self._clock
        self.release(owner)
        self._held[owner] = block

    def _bytes(self, pieces: Iterable[Piece]) -> int:
        return sum(map(self.layout.nbytes, pieces))

    def _make_room(self, need: int, spared: set[int], top: int) -> list[int]:
        if need > top and not self.layout.resumes_anywhere:
            need = 0  # there is no hope for it: nothing goes for its sake
        if self.nbytes + need <= top:
            return []
        return self._shrink(max(0, top - need - top // SLACK), spared)

    def _shrink(self, target: int, spared: set[int], *, held_too: bool = False) -> list[int]:
        victims = Victims(self.layout, self._clock, self._used, held_too=held_too)
        if self.nbytes > target:
            victims.look(self._blocks, spared)
        gone: list[int] = []
        while self.nbytes > target and (victim := victims.pop()) is not None:
            block, piece = victim
            if piece is None and block in self._blocks and not block.children:
                gone += self._cut(block)
                victims.add(block.parent)
            elif piece is not None and piece.id in self._used:  # its block may have gone before it
                gone.append(self._remove(block, piece))
                victims.add(block)
        return gone

    def _cut(self, block: Block) -> list[int]:
        """Remove a block and all behind it."""
        assert block.parent is not None
        block.parent.children.remove(block)
        gone: list[int] = []
        for each in list(block.below()):
            gone += [self._count_out(piece) for piece in each.pieces]
            self._blocks.discard(each)
            self.tokens -= len(each.tokens)
        return gone

    def _remove(self, block: Block, piece: Piece) -> int:
        if piece.kind == "state":
            del block.states[piece.stop]
        else:
            block.windows.remove(piece)
        return self._count_out(piece)

    def _count_out(self, piece: Piece) -> int:
        self.nbytes -= self.layout.nbytes(piece)
        self.counts.evicted[piece.kind] += 1
        self._used.pop(piece.id, None)
        return piece.id
