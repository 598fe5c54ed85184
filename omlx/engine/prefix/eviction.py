"""What goes first when there is no room: the largest age · bytes / tokens. Pure Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heappop, heappush
from itertools import count
from math import inf

from omlx.engine.piece import Layout, Piece
from omlx.engine.prefix.block import Block


class Victims:
    """A queue of what can go: ends of branches (as None), states and windows. `used` tells when these last were.

    `held_too` takes blocks that somebody holds. The end of a branch without a state or window that it could be
    continued from is of no use, and goes at once.
    """

    def __init__(
        self, layout: Layout, clock: int, used: Mapping[int, int], *, held_too: bool
    ) -> None:
        self._layout = layout
        self._clock = clock
        self._used = used
        self._held_too = held_too
        self._heap: list[tuple[float, int, Block, Piece | None]] = []
        self._order = count()

    def look(self, blocks: Iterable[Block], spared: set[int]) -> None:
        for block in blocks:
            self.add(block)
            for piece in block.extras:
                if piece.id not in spared:
                    age = self._clock - self._used[piece.id] + 1
                    self._push(age * self._layout.nbytes(piece) / piece.tokens, block, piece)

    def add(self, block: Block | None) -> None:
        """Take in a block if it is the end of a branch now."""
        if (
            block is None
            or block.parent is None
            or block.children
            or (block.locks and not self._held_too)
        ):
            return
        weight = sum(map(self._layout.nbytes, block.pieces)) / len(block.tokens)
        useless = not self._layout.resumes_anywhere and not block.extras
        self._push(inf if useless else (self._clock - block.used + 1) * weight, block, None)

    def pop(self) -> tuple[Block, Piece | None] | None:
        return heappop(self._heap)[2:] if self._heap else None

    def _push(self, score: float, block: Block, piece: Piece | None) -> None:
        heappush(self._heap, (-score, next(self._order), block, piece))
