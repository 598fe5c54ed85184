"""Grammar drafter: where a token mask allows one token only, that token is the draft.

The target samples under the same mask, so the whole draft is accepted: several tokens per pass.
"""

from __future__ import annotations

from typing import ClassVar

from omlx.draft_length import MAX_DRAFT_LENGTH
from omlx.engine.speculation.drafter import Draft, Drafter, Proposal
from omlx.engine.speculation.strategy import Clause
from omlx.engine.step.masking import forced_tokens
from omlx.engine.step.row import Row


class GrammarDrafter(Drafter):
    """Drafts for rows with a mask."""

    kind: ClassVar[str] = "forced"
    name = "forced"

    def __init__(self) -> None:
        self._forced: dict[int, tuple[int, ...]] = {}

    def propose(self, row: Row, limit: int, clause: Clause) -> Proposal | None:
        tokens: tuple[int, ...] = ()
        if row.mask is not None:
            tokens = forced_tokens(row.mask, min(limit, MAX_DRAFT_LENGTH))
        self._forced[row.id] = tokens
        if not tokens:
            return None
        return Proposal(self.name, len(tokens), certain=True, clause=clause)

    def draft(self, row: Row, limit: int) -> Draft | None:
        tokens = self._forced.get(row.id, ())[:limit]
        if not tokens:
            return None
        return Draft(self.name, len(tokens), tokens)

    def drop(self, row_id: int) -> None:
        self._forced.pop(row_id, None)
