"""Has chosen drafts made: rows of one drafter together, and draft models that lag in slices."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace
from math import inf
from typing import Final, Protocol

from omlx.engine.isolation import isolate
from omlx.engine.sequence import Sequence
from omlx.engine.speculation.drafter import Drafter
from omlx.engine.speculation.proposal import Draft, Proposal
from omlx.engine.speculation.row_record import RowRecord

CATCH_UP_SLICE: Final = 256
"""Tokens that draft models read at most between two steps where other requests wait for it."""

FIRST_WINDOW: Final = 16
"""Tokens that a round may read first without being counted as a catch-up."""


class Rows(Protocol):
    """The rows of one model, as their speculator knows them."""

    def row_of(self, sequence: Sequence) -> RowRecord: ...

    def disable_one(self, sequence: Sequence, drafter: Drafter, error: Exception) -> None:
        """Disable a drafter for a row: it raised."""
        ...


class Drafting:
    """Drafts for the rows of one model, which methods are given: a reference to their speculator
    would keep the caches of a model that is unloaded.
    """

    def __init__(self) -> None:
        self._reading: dict[int, Drafter] = {}  # by row: the draft model that catches up
        self._readable: float = inf  # tokens that draft models may read in this step

    def reads(self, sequence: Sequence, drafter: Drafter) -> bool:
        """Return whether a row's draft model is catching up, and proposes nothing."""
        return self._reading.get(sequence.row) is drafter

    def drop(self, row: int) -> None:
        """Forget a row."""
        self._reading.pop(row, None)

    def draft(self, rows: Rows, chosen: Seq[tuple[Sequence, Proposal, int]]) -> dict[int, Draft]:
        """Have proposals of k tokens drafted, by row, and record that they are in flight.

        Rows of one drafter draft together where it can.
        """
        asked: dict[str, list[tuple[Sequence, int]]] = {}
        proposals: dict[int, Proposal] = {}
        for sequence, proposal, k in chosen:
            ready = self._ready(rows, sequence, proposal)
            if ready is not None:
                proposals[sequence.row] = ready
                asked.setdefault(ready.drafter, []).append((sequence, k))
        drafts: dict[int, Draft] = {}
        for name, limits in asked.items():
            drafts |= _draft_by(rows, name, limits)
        for sequence, _, _ in chosen:
            draft = drafts.get(sequence.row)
            if draft is not None:
                row = rows.row_of(sequence)
                row.begin_round(proposals[sequence.row], draft, len(sequence.tokens))
        return drafts

    def _ready(self, rows: Rows, sequence: Sequence, proposal: Proposal) -> Proposal | None:
        """Return the proposal that is to be drafted; None where its drafter reads first."""
        row, context = rows.row_of(sequence), len(sequence.tokens)
        drafter = row.drafter(proposal.drafter)
        assert drafter is not None
        if row.policy.reads_whole(proposal, context):
            with isolate(rows.disable_one, sequence, drafter) as outcome:
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

    def catch_up(self, rows: Rows, sequences: Seq[Sequence], *, alone: bool) -> bool:
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
        with isolate(rows.disable_one, by_row[row], drafter):
            if drafter.catch_up(by_row[row], CATCH_UP_SLICE) > 1:
                self._reading[row] = drafter
        return True


def _draft_by(rows: Rows, name: str, limits: Seq[tuple[Sequence, int]]) -> dict[int, Draft]:
    drafter = rows.row_of(limits[0][0]).drafter(name)
    assert drafter is not None
    drafts: dict[int, Draft] = {}
    if len(limits) > 1:
        with isolate() as outcome:
            drafts |= drafter.draft_together(limits)
        if outcome.error is not None:
            for sequence, _ in limits:
                rows.disable_one(sequence, drafter, outcome.error)
            return {}
    for sequence, k in limits:
        if sequence.row not in drafts:
            with isolate(rows.disable_one, sequence, drafter):
                draft = drafter.draft(sequence, k)
                if draft is not None:
                    drafts[sequence.row] = draft
    return drafts
