"""Has chosen drafts made: rows of one drafter together, and draft models that lag in slices."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace
from math import inf
from typing import Final

from omlx.engine.isolation import isolate
from omlx.engine.sequence import Sequence
from omlx.engine.speculation.drafter import Drafter
from omlx.engine.speculation.proposal import Draft, Proposal
from omlx.engine.speculation.row_record import RowRecord

CATCH_UP_SLICE: Final = 256
"""Tokens that draft models read at most between two steps where other requests wait for it."""

FIRST_WINDOW: Final = 16
"""Tokens that a round may read first without being counted as a catch-up."""


class Drafting:
    """Drafts for the rows of one model. `disable` is called where a row's drafter raised."""

    def __init__(
        self,
        row_of: Callable[[Sequence], RowRecord],
        disable: Callable[[Sequence, Drafter, Exception], None],
    ) -> None:
        self._row_of = row_of
        self._disable = disable
        self._reading: dict[int, Drafter] = {}  # by row: the draft model that catches up
        self._readable: float = inf  # tokens that draft models may read in this step

    def reads(self, sequence: Sequence, drafter: Drafter) -> bool:
        """Return whether a row's draft model is catching up, and proposes nothing."""
        return self._reading.get(sequence.row) is drafter

    def drop(self, row: int) -> None:
        """Forget a row."""
        self._reading.pop(row, None)

    def draft(self, chosen: Seq[tuple[Sequence, Proposal, int]]) -> dict[int, Draft]:
        """Have proposals of k tokens drafted, by row, and record that they are in flight.

        Rows of one drafter draft together where it can.
        """
        asked: dict[str, list[tuple[Sequence, int]]] = {}
        proposals: dict[int, Proposal] = {}
        for sequence, proposal, k in chosen:
            ready = self._ready(sequence, proposal)
            if ready is not None:
                proposals[sequence.row] = ready
                asked.setdefault(ready.drafter, []).append((sequence, k))
        drafts: dict[int, Draft] = {}
        for name, limits in asked.items():
            drafts |= self._draft_by(name, limits)
        for sequence, _, _ in chosen:
            draft = drafts.get(sequence.row)
            if draft is not None:
                row = self._row_of(sequence)
                row.begin_round(proposals[sequence.row], draft, len(sequence.tokens))
        return drafts

    def _draft_by(self, name: str, limits: Seq[tuple[Sequence, int]]) -> dict[int, Draft]:
        drafter = self._row_of(limits[0][0]).drafter(name)
        assert drafter is not None
        drafts: dict[int, Draft] = {}
        if len(limits) > 1:
            with isolate() as outcome:
                drafts |= drafter.draft_together(limits)
            if outcome.error is not None:
                for sequence, _ in limits:
                    self._disable(sequence, drafter, outcome.error)
                return {}
        for sequence, k in limits:
            if sequence.row not in drafts:
                with isolate(self._disable, sequence, drafter):
                    draft = drafter.draft(sequence, k)
                    if draft is not None:
                        drafts[sequence.row] = draft
        return drafts

    def _ready(self, sequence: Sequence, proposal: Proposal) -> Proposal | None:
        """Return the proposal that is to be drafted; None where its drafter reads first."""
        row, context = self._row_of(sequence), len(sequence.tokens)
        drafter = row.drafter(proposal.drafter)
        assert drafter is not None
        if row.policy.reads_whole(proposal, context):
            with isolate(self._disable, sequence, drafter) as outcome:
                drafter.read_whole(sequence)
            if outcome.error is not None:
                return None
            proposal = replace(proposal, lag=proposal.lag + proposal.skipped, skipped=0)
        if proposal.lag <= FIRST_WINDOW:
            return proposal
        if proposal.lag <= self._readable:
            self._readable -= proposal.lag
            return proposal
        self._reading[sequence.row] = drafter
        row.policy.observe_catch_up(proposal, context)
        return None

    def catch_up(self, sequences: Seq[Sequence], *, alone: bool) -> bool:
        """Let a draft model that lags read a slice, one row's after another's. Return whether one
        did.

        Before the drafts of a step, in which they may read a slice too. A row that is `alone` reads
        all that it lags at once.
        """
        self._readable = inf if alone else CATCH_UP_SLICE
        if not self._reading:
            return False
        by_row = {sequence.row: sequence for sequence in sequences}
        row = next((row for row in self._reading if row in by_row), None)
        if row is None:
            return False
        drafter, self._readable = self._reading.pop(row), 0
        with isolate(self._disable, by_row[row], drafter):
            if drafter.catch_up(by_row[row], CATCH_UP_SLICE) > 1:
                self._reading[row] = drafter
        return True
