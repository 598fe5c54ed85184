"""The nodes of the prefix index: blocks of tokens, each with the pieces that they left behind. Pure Python."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from omlx.engine.piece import Piece


@dataclass(eq=False, slots=True)
class Block:
    """`tokens` from `start` on. Its `rows` pieces cover it without a gap; `states` are by the length they stand at.

    `children` are in the order of their tokens, none of which begin with all of another's. `used` is when a request
    last read it, `locks` how many hold it or a block behind it.
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
        """What decides where a prefix may be continued."""
        return [*self.windows, *self.states.values()]

    @property
    def pieces(self) -> list[Piece]:
        return [*self.rows, *self.extras]

    def place(self, tokens: tuple[int, ...]) -> int:
        """Where among the children one with these tokens stands or would stand."""
        return bisect_left(self.children, tokens, key=lambda child: child.tokens)

    def upwards(self) -> Iterator[Block]:
        """From here up to the first of the branch."""
        block = self
        while block.parent is not None:
            yield block
            block = block.parent

    def below(self) -> Iterator[Block]:
        """This one and all behind it."""
        stack = [self]
        while stack:
            yield (here := stack.pop())
            stack += here.children

    def check(self, block_tokens: int) -> None:
        """Raise AssertionError if it contradicts itself."""
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
        assert all(
            self.start < end == piece.stop <= self.stop for end, piece in self.states.items()
        )


def descend(root: Block, tokens: Sequence[int], block_tokens: int) -> list[Block]:
    """The full blocks that `tokens` run through."""
    path: list[Block] = []
    node = root
    while len(wanted := tuple(tokens[node.stop : node.stop + block_tokens])) == block_tokens:
        at = node.place(wanted)
        if at == len(node.children) or node.children[at].tokens != wanted:
            break
        node = node.children[at]
        path.append(node)
    return path


def alike(node: Block, wanted: tuple[int, ...], *, all_of_them: bool) -> list[tuple[Block, int]]:
    """The children of `node` that begin like `wanted`, and for how many tokens, the most alike first.

    They are neighbours in the order of their tokens. Not `all_of_them`: one on each side, the best among them.
    """
    at = node.place(wanted)
    found: list[tuple[Block, int]] = []
    for side in (range(at, len(node.children)), range(at - 1, -1, -1)):
        for i in side:
            if not (same := common(node.children[i].tokens, wanted)):
                break
            found.append((node.children[i], same))
            if not all_of_them:
                break
    return sorted(found, key=lambda pair: pair[1], reverse=True)


def common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """How many tokens two sequences begin with together."""
    if a == b:
        return len(a)
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )
