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
        unsaved = saved_pieces([*self.next, *self.later], {row})
        self.next = [op for op in self.next if not _depends(op, row)]
        self.later = [op for op in self.later if not _depends(op, row)]
        return unsaved


def _depends(op: CacheOp, row: int) -> bool:
    return isinstance(op, Rewind | Save) and op.row == row


def saved_pieces(ops: Iterable[CacheOp], rows: Container[int] | None = None) -> list[int]:
    """Ids of the pieces that operations save from these rows, or from any."""
    saves = [op for op in ops if isinstance(op, Save) and (rows is None or op.row in rows)]
    return [piece.id for piece in chain.from_iterable(save.pieces for save in saves)]
