"""Eviction order: the largest age · bytes / tokens first. Pure Python.

What was not used for long, takes many bytes and is computed again quickly costs least to lose.
Blocks are evicted from the ends of branches; windows and states, which only decide where a prefix
can be restored, from anywhere.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from math import inf

from omlx.engine.piece import Piece
from omlx.engine.prefix.block import Block
from omlx.engine.prefix.tree import PrefixTree


class EvictionQueue:
    """What can be evicted: the last block of a branch (as None), a window or a state.

    `pinned` pieces are left out, and so are locked blocks unless `include_locked`. A last block
    that no window or state lets a prefix be restored from is of no use, and comes first.
    """

    def __init__(self, tree: PrefixTree, pinned: set[int], *, include_locked: bool) -> None:
        self._tree = tree
        self._include_locked = include_locked
        self._heap: list[tuple[float, int, Block, Piece | None]] = []
        self._order = count()
        for block in tree.blocks:
            self.add(block)
            for piece in block.extras:
                if piece.id not in pinned:
                    weight = tree.layout.nbytes(piece) / piece.tokens
                    self._push(self._age(tree.used[piece.id]) * weight, block, piece)

    def add(self, block: Block | None) -> None:
        """Add a block if it is the last of a branch now."""
        if block is None or block.parent is None or block.children:
            return
        if block.locks and not self._include_locked:
            return
        if not self._tree.layout.resumes_anywhere and not block.extras:
            self._push(inf, block, None)
            return
        weight = self._tree.bytes_of(block.pieces) / len(block.tokens)
        self._push(self._age(block.used) * weight, block, None)

    def pop(self) -> tuple[Block, Piece | None] | None:
        if not self._heap:
            return None
        return heappop(self._heap)[2:]

    def _age(self, used: int) -> int:
        return self._tree.clock - used + 1

    def _push(self, score: float, block: Block, piece: Piece | None) -> None:
        heappush(self._heap, (-score, next(self._order), block, piece))
