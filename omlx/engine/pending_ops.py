"""Cache operations that wait for a plan. Pure Python."""

from __future__ import annotations

from collections.abc import Container, Iterable
from itertools import chain

from omlx.engine.plan import CacheOp, Rewind, Save


class PendingOps:
    """`next` holds the operations of the next plan, `later` those of the plan after it."""

    def __init__(self) -> None:
        self.next: list[CacheOp] = []
        self.later: list[CacheOp] = []

    def advance(self) -> None:
        """The next plan is made: what waited for the one after it is next."""
        self.next, self.later = self.later, []

    def discard(self, row: int) -> list[int]:
        """Remove rollbacks and saves of a failed row. Return the ids of its unsaved pieces."""
        unsaved = saved_pieces(self.next, {row})
        self.next = [
            op for op in self.next if not (isinstance(op, Rewind | Save) and op.row == row)
        ]
        return unsaved


def saved_pieces(ops: Iterable[CacheOp], rows: Container[int]) -> list[int]:
    """Ids of the pieces that operations save from these rows."""
    saves = [op for op in ops if isinstance(op, Save) and op.row in rows]
    return [piece.id for piece in chain.from_iterable(save.pieces for save in saves)]
