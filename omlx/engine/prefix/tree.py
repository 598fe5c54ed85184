"""The radix tree of cached prefixes, whose nodes are blocks. Pure Python.

    root ── "You are a …" ── "… helpful agent" ─┬─ "Read a.py" (partly filled: it may grow)
                                                └─ "Fix the test" ── …

A block holds `block_tokens` tokens, or fewer if it is the last of its branch, and the cache pieces
that they left behind. A prefix that several requests share is there once; where two part inside a
block, they share the blocks before it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeVar

from omlx.engine.piece import Layout, Piece


@dataclass(eq=False, slots=True)
class Block:
    """Node of the radix tree: `tokens` from position `start` on.

    `rows` cover them without a gap; `states` are by the position they stand at. `children` are in
    the order of their tokens, and none begins with all of another's. `used` is when a request last
    read the block, `locks` how many requests hold it or a block behind it.
    """

    start: int
    tokens: tuple[int, ...]
    parent: Block | None
    children: list[Block] = field(default_factory=list)
    rows: list[Piece] = field(default_factory=list)
    windows: list[Piece] = field(default_factory=list)
    states: dict[int, Piece] = field(default_factory=dict)
    used: int = 0
    locks: int = 0

    @property
    def stop(self) -> int:
        return self.start + len(self.tokens)

    @property
    def extras(self) -> list[Piece]:
        """Windows and states, which decide where a prefix can be restored."""
        return [*self.windows, *self.states.values()]

    @property
    def pieces(self) -> list[Piece]:
        return [*self.rows, *self.extras]

    def place(self, tokens: tuple[int, ...]) -> int:
        """Return the index among the children where one with these tokens is or would be."""
        return bisect_left(self.children, tokens, key=lambda child: child.tokens)

    def upwards(self) -> Iterator[Block]:
        """Yield this block and those before it, up to the first of the branch."""
        block = self
        while block.parent is not None:
            yield block
            block = block.parent

    def below(self) -> Iterator[Block]:
        """Yield this block and all behind it."""
        stack = [self]
        while stack:
            block = stack.pop()
            yield block
            stack += block.children

    def check(self, block_tokens: int) -> None:
        """Raise AssertionError if the block contradicts itself."""
        assert 0 < len(self.tokens) <= block_tokens
        assert self.start % block_tokens == 0
        assert not self.children or len(self.tokens) == block_tokens
        assert self.locks >= max((child.locks for child in self.children), default=0)
        orders = [child.tokens for child in self.children]
        assert orders == sorted(set(orders))
        at = self.start
        for piece in self.rows:
            assert piece.start == at
            at = piece.stop
        assert at == self.stop
        at = self.start
        for piece in self.windows:
            assert at <= piece.start < piece.stop <= self.stop
            at = piece.stop
        for end, piece in self.states.items():
            assert self.start < end == piece.stop <= self.stop


S = TypeVar("S", str, tuple[int, ...])


def shared_length(left: S, right: S) -> int:
    """Return the length of the longest common prefix."""
    least, most = 0, min(len(left), len(right))
    while least < most:
        middle = (least + most + 1) // 2
        if left[least:middle] == right[least:middle]:
            least = middle
        else:
            most = middle - 1
    return least


@dataclass(slots=True)
class Counts:
    """Counts since the start; `stored` and `evicted` count pieces by kind."""

    stored: Counter[str] = field(default_factory=Counter)
    evicted: Counter[str] = field(default_factory=Counter)
    hits: int = 0
    misses: int = 0
    hit_tokens: int = 0
    states_used: int = 0
    asked: int = 0
    refused: int = 0


class PrefixTree:
    """Blocks and pieces, and their size in bytes and tokens.

    `blocks` are in the order of their creation, so that equal requests cause equal evictions.
    `used` is the time on `clock` at which each window or state was last read, by id of the piece.
    """

    def __init__(self, layout: Layout, block_tokens: int) -> None:
        self.layout = layout
        self.block_tokens = block_tokens
        self.root = Block(0, (), None)
        self.blocks: dict[Block, None] = {}
        self.nbytes = 0
        self.tokens = 0
        self.clock = 0
        self.used: dict[int, int] = {}
        self.counts = Counts()

    @property
    def pieces(self) -> list[Piece]:
        """All pieces, in no order."""
        return list(chain.from_iterable(block.pieces for block in self.blocks))

    def descend(self, tokens: Sequence[int]) -> list[Block]:
        """Return the full blocks that `tokens` run through."""
        path: list[Block] = []
        node = self.root
        while True:
            wanted = tuple(tokens[node.stop : node.stop + self.block_tokens])
            if len(wanted) < self.block_tokens:
                return path
            at = node.place(wanted)
            if at == len(node.children) or node.children[at].tokens != wanted:
                return path
            node = node.children[at]
            path.append(node)

    def continuations(
        self, path: Sequence[Block], tokens: Sequence[int]
    ) -> list[tuple[Block, int]]:
        """Return blocks behind `path` that begin as `tokens` continue, and for how many tokens.

        The longest first. They are neighbours in the order of their tokens; where any length can be
        restored only the next on each side is returned: the longest is among them.
        """
        node = self._last(path)
        wanted = tuple(tokens[node.stop : node.stop + self.block_tokens])
        at, similar = node.place(wanted), list[tuple[Block, int]]()
        for side in (range(at, len(node.children)), range(at - 1, -1, -1)):
            for i in side:
                same = shared_length(node.children[i].tokens, wanted)
                if not same:
                    break
                similar.append((node.children[i], same))
                if self.layout.resumes_anywhere:
                    break
        return sorted(similar, key=lambda pair: pair[1], reverse=True)

    def _last(self, path: Sequence[Block]) -> Block:
        return path[-1] if path else self.root

    def touch(self, pieces: Iterable[int]) -> None:
        """Mark windows and states as just read."""
        self.used.update({piece: self.clock for piece in pieces if piece in self.used})

    def attach(self, path: list[Block], pieces: Iterable[Piece], tokens: Sequence[int]) -> None:
        """Add pieces of `tokens`. Extends `path` by the blocks that are created for them."""
        for piece in pieces:
            self.nbytes += self.layout.nbytes(piece)
            self.counts.stored[piece.kind] += 1
            at = (piece.stop - 1) // self.block_tokens
            if piece.kind == "rows":
                self._attach_rows(path, at, piece, tokens)
                continue
            self.used[piece.id] = self.clock
            if piece.kind == "window":
                insort(path[at].windows, piece, key=lambda window: window.start)
            else:
                path[at].states[piece.stop] = piece

    def _attach_rows(self, path: list[Block], at: int, piece: Piece, tokens: Sequence[int]) -> None:
        held = tuple(tokens[at * self.block_tokens : piece.stop])
        if at == len(path):
            parent = self._last(path)
            block = Block(at * self.block_tokens, held, parent)
            parent.children.insert(parent.place(held), block)
            self.blocks[block] = None
            path.append(block)
        else:  # the last, partly filled one: no sibling begins with its tokens, so the order holds
            path[at].tokens = held
        path[at].rows.append(piece)
        self.tokens += piece.tokens

    def cut(self, block: Block) -> list[int]:
        """Remove a block and all behind it. Return the ids of their pieces."""
        assert block.parent is not None
        block.parent.children.remove(block)
        removed: list[int] = []
        for lost in list(block.below()):
            removed += [self._count_out(piece) for piece in lost.pieces]
            self.blocks.pop(lost, None)
            self.tokens -= len(lost.tokens)
        return removed

    def remove(self, block: Block, piece: Piece) -> int:
        """Remove a window or a state. Return its id."""
        if piece.kind == "state":
            del block.states[piece.stop]
        else:
            block.windows.remove(piece)
        return self._count_out(piece)

    def _count_out(self, piece: Piece) -> int:
        self.nbytes -= self.layout.nbytes(piece)
        self.counts.evicted[piece.kind] += 1
        self.used.pop(piece.id, None)
        return piece.id

    def bytes_of(self, pieces: Iterable[Piece]) -> int:
        return sum(map(self.layout.nbytes, pieces))

    def check(self) -> None:
        """Raise AssertionError if blocks, pieces and sizes disagree."""
        assert set(self.root.below()) - {self.root} == self.blocks.keys()
        pieces = self.pieces
        assert len({piece.id for piece in pieces}) == len(pieces)
        assert self.nbytes == self.bytes_of(pieces)
        assert self.tokens == sum(len(block.tokens) for block in self.blocks)
        assert {piece.id for piece in pieces if piece.kind != "rows"} == set(self.used)
        for block in self.blocks:
            block.check(self.block_tokens)
