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
        self, records: Seq[RowRecord], cost_model: CostModel
    ) -> list[tuple[RowRecord, Proposal, int]]:
        """Return what each row is to draft, and how many tokens, for those that are."""
        offered = [_proposals(record, self.widest) for record in records]
        if not any(offered):
            return []
        sharing = Counter(p.drafter for p in chain.from_iterable(offered) if not p.free)
        step = cost_model.next_pass(len(records), longest_of(records), sharing)
        candidates = []
        for record, proposals in zip(records, offered, strict=True):
            candidate = plain(record.row.pending)
            with isolate(record.disable):
                candidate = record.policy.choose(proposals, record.row.pending, step)
            candidates.append(candidate)
        width, _, pays = candidates[0].decision
        if len(candidates) > 1:
            width, _, pays = step.decide([candidate.forecast for candidate in candidates])
        chosen: list[tuple[RowRecord, Proposal, int]] = []
        for record, candidate in zip(records, candidates, strict=True):
            k = candidate.forecast.draft_length(width)
            if pays and k and candidate.proposal is not None:
                chosen.append((record, candidate.proposal, k))
        return chosen

    def draft(self, records: Seq[RowRecord], cost_model: CostModel) -> dict[int, Draft]:
        """Draft for the rows of a pass, by row, and record that the drafts are in flight."""
        asked: dict[str, list[tuple[RowRecord, int]]] = {}
        proposals: dict[int, Proposal] = {}
        for record, proposal, k in self.choose(records, cost_model):
            ready = self._ready(record, proposal)
            if ready is not None:
                proposals[record.row.id] = ready
                asked.setdefault(ready.drafter, []).append((record, k))
        drafts: dict[int, Draft] = {}
        for name, limits in asked.items():
            drafts |= _draft_by(name, limits)
        drafting = [record for record in records if record.row.id in drafts]
        widths = [record.row.pending + drafts[record.row.id].n for record in drafting]
        pass_s = (
            cost_model.batch_pass(len(records), max(widths), longest_of(records)) if widths else 0.0
        )
        for record in drafting:
            record.begin_round(proposals[record.row.id], drafts[record.row.id], pass_s)
        return drafts

    def _ready(self, record: RowRecord, proposal: Proposal) -> Proposal | None:
        """Return the proposal that is to be drafted; None where its drafter reads first."""
        drafter, context = record.drafter(proposal.drafter), len(record.row.tokens)
        assert drafter is not None
        if proposal.restarts:
            with isolate(record.disable_one, drafter) as outcome:
                drafter.read_whole(record.row)
            if outcome.error is not None:
                return None
        if proposal.lag <= FIRST_WINDOW:
            return proposal
        if proposal.lag <= self._readable:
            self._readable -= proposal.lag
            return proposal
        record.reading = drafter
        record.policy.observe_catch_up(proposal, context)
        return None

    def catch_up(self, records: Seq[RowRecord], *, alone: bool) -> bool:
        """Let the first draft model that catches up read a slice. Return whether one did.

        Before the drafts of a step, in which they may read a slice too. A row that is `alone` reads
        all that it lags at once.
        """
        self._readable = inf if alone else CATCH_UP_SLICE
        for record in records:
            drafter = record.reading
            if drafter is not None:
                self._readable, left = 0, 0
                with isolate(record.disable_one, drafter):
                    left = drafter.catch_up(record.row, CATCH_UP_SLICE)
                record.reading = drafter if left > 1 else None
                return True
        return False


def longest_of(records: Seq[RowRecord]) -> int:
    """Return the context of a pass: the tokens of its longest row."""
    return max([len(record.row.tokens) for record in records])


def _proposals(record: RowRecord, widest: int | None) -> list[Proposal]:
    """Return what the row's drafters propose now and is to be evaluated.

    A draft model that is catching up proposes nothing.
    """
    proposals: list[Proposal] = []
    room, pending = record.row.remaining - 1, record.row.pending
    if widest is not None:
        room = min(room, widest - pending)
    able = pending <= MAX_PENDING and (widest is None or room > 0)
    for drafter in record.drafters if able else ():
        if record.reading is drafter:
            continue
        clause = record.clauses[drafter.name]
        most = min(room, clause.draft_length.max or room)
        with isolate(record.disable_one, drafter):
            proposal = drafter.propose(record.row, most, clause)
            if proposal is not None:
                proposals.append(proposal)
    record.unused = next((proposal for proposal in proposals if proposal.tokens), None)
    return record.policy.due(proposals)


def _draft_by(name: str, limits: Seq[tuple[RowRecord, int]]) -> dict[int, Draft]:
    """Let a drafter draft at most as many tokens for each row as its limit says."""
    drafter = limits[0][0].drafter(name)
    assert drafter is not None
    drafts: dict[int, Draft] = {}
    if len(limits) > 1:
        with isolate() as outcome:
            drafts |= drafter.draft_together([(record.row, k) for record, k in limits])
        if outcome.error is not None:
            for record, _ in limits:
                record.disable_one(drafter, outcome.error)
            return {}
    for record, k in limits:
        if record.row.id not in drafts:
            with isolate(record.disable_one, drafter):
                draft = drafter.draft(record.row, k)
                if draft is not None:
                    drafts[record.row.id] = draft
    return drafts
