"""What must come, as the draft: where a mask leaves one token only, that token costs no model to know.

The target samples under the same mask, so all of it is accepted: several tokens for one pass.
"""

from __future__ import annotations

from typing import ClassVar

from omlx.draft_length import MAX_DRAFT_LENGTH
from omlx.engine.masking import forced_tokens
from omlx.engine.sequence import Sequence
from omlx.engine.speculation.drafter import Drafter
from omlx.engine.speculation.proposal import Draft, Proposal
from omlx.engine.strategy import Step


class GrammarDrafter(Drafter):
    """Drafts for rows with a mask."""

    kind: ClassVar[str] = "forced"
    name = "forced"

    def __init__(self) -> None:
        self._runs: dict[int, tuple[int, ...]] = {}

    def propose(self, sequence: Sequence, limit: int, step: Step) -> Proposal | None:
        mask = sequence.request.mask
        run = forced_tokens(mask, min(limit, MAX_DRAFT_LENGTH)) if mask is not None else ()
        self._runs[sequence.row] = run
        return Proposal(self.name, len(run), certain=True, step=step) if run else None

    def draft(self, sequence: Sequence, limit: int) -> Draft | None:
        """What the offer just made was about."""
        run = self._runs.get(sequence.row, ())[:limit]
        return Draft(self.name, len(run), run) if run else None

    def drop(self, row: int) -> None:
        self._runs.pop(row, None)
