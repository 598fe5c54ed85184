"""Whether the rows that share a batch draft in their next pass, and what came of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from functools import partial
from itertools import chain

from omlx.engine.isolation import isolate
from omlx.engine.sequence import Interval, Sequence
from omlx.engine.speculation.cost_model import PLAIN, SHORT_LAG, CostModel
from omlx.engine.speculation.decide import RowForecast, decide
from omlx.engine.speculation.policy import RowPolicy
from omlx.engine.speculation.proposal import Draft, Proposal
from omlx.engine.speculation.rectangle import Member, choose_width
from omlx.engine.speculation.speculator import MAX_PENDING, Speculator


class Company:
    """The rows of one batch, in its order."""

    def __init__(self, speculator: Speculator, sequences: Seq[Sequence]) -> None:
        self._speculator = speculator
        self._sequences = sequences

    @property
    def _cost_model(self) -> CostModel:
        return self._speculator.cost_model

    @property
    def _context(self) -> int:
        """Tokens of the longest row."""
        return max(len(sequence.tokens) for sequence in self._sequences)

    def would_draft(self) -> bool:
        """Return whether a row would draft now: if so, the step in flight is committed first."""
        return len(self._choose()) > 0

    def draft(self) -> dict[int, Draft]:
        """Draft for the rows that pay in one pass of all, by row."""
        drafts = self._speculator.drafting.draft(self._speculator, self._choose())
        drafting = [s for s in self._sequences if s.row in drafts]
        width = max((s.pending + drafts[s.row].n for s in drafting), default=1)
        seconds = self._seconds(width)
        for sequence in drafting:
            row = self._speculator.row_of(sequence)
            row.expected_s = row.draft_s + seconds
        return drafts

    def observe(self, interval: Interval) -> None:
        """Learn from a pass that all rows shared, before their commits."""
        seconds = interval.seconds
        for sequence in self._sequences:
            row = self._speculator.row_of(sequence)
            if row.proposal is not None and not row.proposal.free:
                seconds -= row.draft_s
                if row.proposal.lag > SHORT_LAG:  # its time is an estimate, which teaches nothing
                    return
        learn = self._cost_model.company.learn
        learn(interval.rows, interval.width, self._context, seconds)

    def _choose(self) -> list[tuple[Sequence, Proposal, int]]:
        """Return what each row is to draft, for those that are."""
        if not self._measured():
            return []
        plain_s = self._seconds(PLAIN)
        proposals = [self._proposals(sequence) for sequence in self._sequences]
        sharing = Counter(p.drafter for p in chain.from_iterable(proposals) if not p.free)
        members = [
            self._member(sequence, offered, plain_s, sharing)
            for sequence, offered in zip(self._sequences, proposals, strict=True)
        ]
        if all(member.proposal is None for member in members):
            return []
        width, _, pays = choose_width(members, self._seconds, plain_s)
        chosen: list[tuple[Sequence, Proposal, int]] = []
        for sequence, member in zip(self._sequences, members, strict=True):
            k = member.draft_length(width, recurrent=self._speculator.recurrent)
            if member.proposal is None:
                continue
            if plain_s and not member.fixed and not member.proposal.certain:
                speedup = member.forecast.tokens[k] * plain_s / self._seconds(width)
                policy = self._speculator.row_of(sequence).policy
                policy.add_forecast(member.proposal, speedup)
            if pays and k:
                chosen.append((sequence, member.proposal, k))
        return chosen

    def _measured(self) -> bool:
        """Whether a pass of so many rows was measured: the first ones are plain steps.

        Rows that draft whatever it costs need no measurement.
        """
        rows = len(self._sequences)
        if rows > 1 and self._cost_model.company.knows(rows):
            return True
        if rows == 1 and self._cost_model.target.plain(self._context) is not None:
            return True
        fixed = (self._speculator.row_of(s).policy.draft_length.fixed for s in self._sequences)
        return any(length is not None for length in fixed)

    def _proposals(self, sequence: Sequence) -> list[Proposal]:
        proposals: list[Proposal] = []
        if self._speculator.refusal(sequence) is None:
            with isolate(self._speculator.disable, sequence):
                row = self._speculator.row_of(sequence)
                proposals = self._speculator.proposals(row, sequence)
                row.learn(proposals)
        return proposals if sequence.pending <= MAX_PENDING else []

    def _member(
        self,
        sequence: Sequence,
        proposals: Seq[Proposal],
        plain_s: float,
        sharing: Mapping[str, int],
    ) -> Member:
        """Return what a row could bring by the best of its proposals.

        `sharing` says how many rows could share a draft model's passes, by its name.
        """
        member = Member(RowForecast(sequence.pending))
        with isolate(self._speculator.disable, sequence):
            policy, context = self._speculator.row_of(sequence).policy, len(sequence.tokens)
            members = _members(policy, proposals, sequence.pending, context, sharing)
            member = max(members, key=partial(self._speedup, plain_s), default=member)
        return member

    def _speedup(self, plain_s: float, member: Member) -> float:
        """Return the speed-up if this row were the only one to draft."""
        if not plain_s:
            return 0.0
        widths = range(member.forecast.pending, member.forecast.pending + 17, 4)
        return decide([member.forecast], widths, self._seconds, plain_s).speedup

    def _seconds(self, width: int) -> float:
        return self._cost_model.batch_pass(len(self._sequences), width, self._context)


def _members(
    policy: RowPolicy,
    proposals: Seq[Proposal],
    pending: int,
    context: int,
    sharing: Mapping[str, int],
) -> list[Member]:
    """Return what a row could bring to a pass that it shares, one member per proposal."""
    fixed = policy.draft_length.fixed is not None
    if proposals and (fixed or proposals[0].certain):
        longest = min(proposals[0].max_length, policy.draft_length.max)
        certain = RowForecast(pending, range(1, longest + 2), [0.0] * (longest + 1))
        return [Member(certain, proposals[0], fixed=fixed)]
    members = []
    for proposal in () if fixed else proposals:
        shortest = policy.min_length(proposal)
        if proposal.max_length >= shortest and policy.evaluates(proposal):
            rows = sharing.get(proposal.drafter, 1)
            forecast = policy.forecast(proposal, pending, context, rows)
            members.append(Member(forecast, proposal, shortest))
    return members
