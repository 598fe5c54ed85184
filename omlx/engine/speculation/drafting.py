"""What the rows of a pass propose, which of that is drafted, and how: rows of one drafter together,
and draft models that lag in slices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Seq
from itertools import chain
from math import inf
from typing import Final

from omlx.engine.device_errors import isolate
from omlx.engine.speculation.cost_model import CostModel
from omlx.engine.speculation.policy import plain
from omlx.engine.speculation.proposal import Draft, Proposal
from omlx.engine.speculation.row_record import RowRecord

CATCH_UP_SLICE: Final = 256
"""Tokens that draft models read at most between two steps where other requests wait for it."""

FIRST_WINDOW: Final = 16
"""Tokens that a round may read first without being counted as a catch-up."""

MAX_PENDING: Final = 12
"""Tokens. More accepted tokens than that (recurrent models) are read by a pass without a draft."""


class Drafting:
    """Drafts for the rows that share a pass."""

    def __init__(self) -> None:
        self._readable: float = inf  # tokens that draft models may read in this step
        self.widest: int | None = None  # tokens of a window at most

    def choose(
        self, rows: Seq[RowRecord], cost_model: CostModel
    ) -> list[tuple[RowRecord, Proposal, int]]:
        """Return what each row is to draft, and how many tokens, for those that are."""
        offered = [_proposals(row, self.widest) for row in rows]
        if not any(offered):
            return []
        sharing = Counter(p.drafter for p in chain.from_iterable(offered) if not p.free)
        step = cost_model.next_pass(len(rows), longest_of(rows), sharing)
        candidates = []
        for row, proposals in zip(rows, offered, strict=True):
            candidate = plain(row.sequence.pending)
            with isolate(row.disable):
                candidate = row.policy.choose(proposals, row.sequence.pending, step)
            candidates.append(candidate)
        width, _, pays = candidates[0].decision
        if len(candidates) > 1:
            width, _, pays = step.decide([candidate.forecast for candidate in candidates])
        chosen: list[tuple[RowRecord, Proposal, int]] = []
        for row, candidate in zip(rows, candidates, strict=True):
            k = candidate.forecast.draft_length(width)
            if pays and k and candidate.proposal is not None:
                chosen.append((row, candidate.proposal, k))
        return chosen

    def draft(self, rows: Seq[RowRecord], cost_model: CostModel) -> dict[int, Draft]:
        """Draft for the rows of a pass, by row, and record that the drafts are in flight."""
        asked: dict[str, list[tuple[RowRecord, int]]] = {}
        proposals: dict[int, Proposal] = {}
        for row, proposal, k in self.choose(rows, cost_model):
            ready = self._ready(row, proposal)
            if ready is not None:
                proposals[row.sequence.row] = ready
                asked.setdefault(ready.drafter, []).append((row, k))
        drafts: dict[int, Draft] = {}
        for name, limits in asked.items():
            drafts |= _draft_by(name, limits)
        drafting = [row for row in rows if row.sequence.row in drafts]
        widths = [row.sequence.pending + drafts[row.sequence.row].n for row in drafting]
        pass_s = cost_model.batch_pass(len(rows), max(widths), longest_of(rows)) if widths else 0.0
        for row in drafting:
            row.begin_round(proposals[row.sequence.row], drafts[row.sequence.row], pass_s)
        return drafts

    def _ready(self, row: RowRecord, proposal: Proposal) -> Proposal | None:
        """Return the proposal that is to be drafted; None where its drafter reads first."""
        drafter, context = row.drafter(proposal.drafter), len(row.sequence.tokens)
        assert drafter is not None
        if proposal.restarts:
            with isolate(row.disable_one, drafter) as outcome:
                drafter.read_whole(row.sequence)
            if outcome.error is not None:
                return None
        if proposal.lag <= FIRST_WINDOW:
            return proposal
        if proposal.lag <= self._readable:
            self._readable -= proposal.lag
            return proposal
        row.reading = drafter
        row.policy.observe_catch_up(proposal, context)
        return None

    def catch_up(self, rows: Seq[RowRecord], *, alone: bool) -> bool:
        """Let the first draft model that catches up read a slice. Return whether one did.

        Before the drafts of a step, in which they may read a slice too. A row that is `alone` reads
        all that it lags at once.
        """
        self._readable = inf if alone else CATCH_UP_SLICE
        for row in rows:
            drafter = row.reading
            if drafter is not None:
                self._readable, left = 0, 0
                with isolate(row.disable_one, drafter):
                    left = drafter.catch_up(row.sequence, CATCH_UP_SLICE)
                row.reading = drafter if left > 1 else None
                return True
        return False


def longest_of(rows: Seq[RowRecord]) -> int:
    """Return the context of a pass: the tokens of its longest row."""
    return max([len(row.sequence.tokens) for row in rows])


def _proposals(row: RowRecord, widest: int | None) -> list[Proposal]:
    """Return what the row's drafters propose now and is to be evaluated.

    A draft model that is catching up proposes nothing.
    """
    proposals: list[Proposal] = []
    room, pending = row.sequence.remaining - 1, row.sequence.pending
    if widest is not None:
        room = min(room, widest - pending)
    able = pending <= MAX_PENDING and (widest is None or room > 0)
    for drafter in row.drafters if able else ():
        if row.reading is drafter:
            continue
        clause = row.clauses[drafter.name]
        most = min(room, clause.draft_length.max or room)
        with isolate(row.disable_one, drafter):
            proposal = drafter.propose(row.sequence, most, clause)
            if proposal is not None:
                proposals.append(proposal)
    row.unused = next((proposal for proposal in proposals if proposal.tokens), None)
    return row.policy.due(proposals)


def _draft_by(name: str, limits: Seq[tuple[RowRecord, int]]) -> dict[int, Draft]:
    """Let a drafter draft at most as many tokens for each row as its limit says."""
    drafter = limits[0][0].drafter(name)
    assert drafter is not None
    drafts: dict[int, Draft] = {}
    if len(limits) > 1:
        with isolate() as outcome:
            drafts |= drafter.draft_together([(row.sequence, k) for row, k in limits])
        if outcome.error is not None:
            for row, _ in limits:
                row.disable_one(drafter, outcome.error)
            return {}
    for row, k in limits:
        if row.sequence.row not in drafts:
            with isolate(row.disable_one, drafter):
                draft = drafter.draft(row.sequence, k)
                if draft is not None:
                    drafts[row.sequence.row] = draft
    return drafts
