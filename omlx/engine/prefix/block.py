"""A node of the prefix tree: a block of tokens and their cache pieces. Pure Python."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

from omlx.engine.piece import Piece


@dataclass(eq=False, slots=True)
class Block:
    """`tokens` from position `start` on.

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


def similar_children(
    node: Block, wanted: tuple[int, ...], *, every: bool
) -> list[tuple[Block, int]]:
    """Return the children that begin like `wanted`, and for how many tokens, the longest first.

    They are neighbours in the order of their tokens. Unless `every` one is asked for, only the next
    on each side is returned; the longest is among them.
    """
    at = node.place(wanted)
    similar: list[tuple[Block, int]] = []
    for side in (range(at, len(node.children)), range(at - 1, -1, -1)):
        for i in side:
            same = common_length(node.children[i].tokens, wanted)
            if not same:
                break
            similar.append((node.children[i], same))
            if not every:
                break
    return sorted(similar, key=lambda pair: pair[1], reverse=True)


def common_length(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    """Return how many tokens two sequences begin with in common."""
    if left == right:
        return len(left)
    pairs = enumerate(zip(left, right, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(left), len(right)))
