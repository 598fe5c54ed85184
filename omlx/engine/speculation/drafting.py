"""What the rows of a pass propose, which of that is drafted, and how: rows of one drafter together,
and draft models that lag in slices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Seq
from dataclasses import replace
from itertools import chain
from math import inf
from typing import Final, Protocol

from omlx.engine.isolation import isolate
from omlx.engine.sequence import Sequence
from omlx.engine.speculation.cost_model import CostModel
from omlx.engine.speculation.drafter import Drafter
from omlx.engine.speculation.policy import plain
from omlx.engine.speculation.proposal import Draft, Proposal
from omlx.engine.speculation.row_record import RowRecord
from omlx.errors import Reason

CATCH_UP_SLICE: Final = 256
"""Tokens that draft models read at most between two steps where other requests wait for it."""

FIRST_WINDOW: Final = 16
"""Tokens that a round may read first without being counted as a catch-up."""

MAX_PENDING: Final = 12
"""Tokens. More accepted tokens than that (recurrent models) are read by a pass without a draft."""


class Rows(Protocol):
    """The rows of one model, as their speculator knows them."""

    cost_model: CostModel

    def row_of(self, sequence: Sequence) -> RowRecord: ...

    def refusal(self, sequence: Sequence) -> Reason | None:
        """Return why a row may not draft, or None."""
        ...

    def disable(self, sequence: Sequence, error: Exception) -> None:
        """Disable a row's drafters after an error that may be any one's."""
        ...

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

    def drop(self, row: int) -> None:
        """Forget a row."""
        self._reading.pop(row, None)

    def choose(self, rows: Rows, sequences: Seq[Sequence]) -> list[tuple[Sequence, Proposal, int]]:
        """Return what each row is to draft in the pass that they share, for those that are."""
        offered = [self._proposals(rows, sequence) for sequence in sequences]
        if not any(offered):
            return []
        sharing = Counter(p.drafter for p in chain.from_iterable(offered) if not p.free)
        step = rows.cost_model.next_pass(len(sequences), longest_of(sequences), sharing)
        candidates = []
        for sequence, proposals in zip(sequences, offered, strict=True):
            candidate = plain(sequence.pending)
            with isolate(rows.disable, sequence):
                candidate = rows.row_of(sequence).policy.choose(proposals, sequence.pending, step)
            candidates.append(candidate)
        width, _, pays = candidates[0].decision
        if len(candidates) > 1:
            width, _, pays = step.decide([candidate.forecast for candidate in candidates])
        chosen: list[tuple[Sequence, Proposal, int]] = []
        for sequence, candidate in zip(sequences, candidates, strict=True):
            k = candidate.forecast.draft_length(width)
            if pays and k and candidate.proposal is not None:
                chosen.append((sequence, candidate.proposal, k))
        return chosen

    def _proposals(self, rows: Rows, sequence: Sequence) -> list[Proposal]:
        """Return what the row's drafters propose now and is to be evaluated.

        A draft model that is catching up proposes nothing.
        """
        proposals: list[Proposal] = []
        if rows.refusal(sequence) is not None or sequence.pending > MAX_PENDING:
            return proposals
        row, room = rows.row_of(sequence), sequence.remaining - 1
        for drafter in row.drafters:
            if self._reading.get(sequence.row) is drafter:
                continue
            clause = row.clauses[drafter.name]
            most = min(room, clause.draft_length.max or room)
            with isolate(rows.disable_one, sequence, drafter):
                proposal = drafter.propose(sequence, most, clause)
                if proposal is not None:
                    proposals.append(proposal)
        row.unused = next((proposal for proposal in proposals if proposal.tokens), None)
        return row.policy.due(proposals)

    def draft(self, rows: Rows, sequences: Seq[Sequence]) -> dict[int, Draft]:
        """Draft for the rows of a pass, by row, and record that the drafts are in flight."""
        asked: dict[str, list[tuple[Sequence, int]]] = {}
        proposals: dict[int, Proposal] = {}
        for sequence, proposal, k in self.choose(rows, sequences):
            ready = self._ready(rows, sequence, proposal)
            if ready is not None:
                proposals[sequence.row] = ready
                asked.setdefault(ready.drafter, []).append((sequence, k))
        drafts: dict[int, Draft] = {}
        for name, limits in asked.items():
            drafts |= _draft_by(rows, name, limits)
        drafting = [sequence for sequence in sequences if sequence.row in drafts]
        width = max((s.pending + drafts[s.row].n for s in drafting), default=0)
        for sequence in drafting:
            context = longest_of(sequences)
            pass_s = rows.cost_model.batch_pass(len(sequences), width, context)
            number, row = sequence.row, rows.row_of(sequence)
            row.begin_round(proposals[number], drafts[number], len(sequence.tokens), pass_s)
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


def longest_of(sequences: Seq[Sequence]) -> int:
    """Return the context of a pass: the tokens of its longest row."""
    return max([len(sequence.tokens) for sequence in sequences])


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
