"""Drafts of the rows of a pass: proposals, the choice among them, lessons of each round.

Rows of one drafter draft together; draft models that lag catch up in slices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import inf
from typing import Final, NamedTuple

from omlx.engine.device_errors import isolate
from omlx.engine.speculation.config import CONFIG
from omlx.engine.speculation.cost_model import CostModel
from omlx.engine.speculation.decide import Pass
from omlx.engine.speculation.drafter import Draft, Drafter, Proposal
from omlx.engine.speculation.policy import Choice, GateState, RowPolicy, plain
from omlx.engine.speculation.strategy import Clause
from omlx.engine.step.row import Interval, Row
from omlx.errors import Reason
from omlx.records import DRAFTER_FAILED, DrafterStats, Gate


@dataclass(slots=True)
class RowRecord:
    """State of speculation in one row.

    `drafters` are asked for proposals within their `clauses`; `off_reasons` says why others are
    not. `reading` is the draft model that catches up. `proposal` is the one whose draft is in
    flight: drafting it took `draft_s`, and the round is expected to take `expected_s` seconds.
    `unused` is a lookup's proposal that is compared with the tokens of the step instead. `timed_s`
    are the seconds of all timed steps, `plain_s` what plain decoding would have taken for their
    tokens, `deviation_s` by how many seconds they differed from their estimates.
    """

    row: Row
    policy: RowPolicy
    drafters: list[Drafter]
    clauses: dict[str, Clause]
    off_reasons: dict[str, Reason]
    stats: dict[str, DrafterStats] = field(default_factory=dict)
    reading: Drafter | None = None
    proposal: Proposal | None = None
    draft_s: float = 0.0
    expected_s: float = 0.0
    timed_s: float = 0.0
    plain_s: float = 0.0
    deviation_s: float = 0.0
    unused: Proposal | None = None

    def drafter(self, name: str) -> Drafter | None:
        for drafter in self.drafters:
            if drafter.name == name:
                return drafter
        return None

    @property
    def gates(self) -> dict[str, Gate]:
        """The state of each drafter, by name; first those that are off."""
        gates = {name: Gate(GateState.OFF, reason) for name, reason in self.off_reasons.items()}
        for drafter in self.drafters:
            gates[drafter.name] = Gate(*self.policy.state(drafter.name))
        return gates

    @property
    def speedup(self) -> float | None:
        """Plain time / time of the timed steps; None if either is not measured often enough."""
        return self.plain_s / self.timed_s if self.plain_s and self.timed_s else None

    @property
    def step_deviation(self) -> float:
        """Share of the timed seconds by which steps differed from their estimates; 0 untimed."""
        return self.deviation_s / self.timed_s if self.timed_s else 0.0

    def disable(self, error: Exception) -> None:
        """Disable all drafters after an error of which drafter is unknown."""
        for drafter in self.drafters:
            self.disable_one(drafter, error)
        self.proposal = None

    def disable_one(self, drafter: Drafter, error: Exception) -> None:
        """Disable a drafter for this row: it raised, so all that it holds is unproven."""
        with isolate():
            drafter.drop(self.row.id)
        with isolate():
            drafter.clear()
        detail = f"{type(error).__name__}: {error}"
        self.off_reasons[drafter.name] = Reason(DRAFTER_FAILED, {"detail": detail})
        self.drafters = [other for other in self.drafters if other.name != drafter.name]
        self.proposal = self.reading = None

    def begin_round(self, proposal: Proposal, draft: Draft, pass_s: float = 0.0) -> None:
        """Record that a draft of this proposal is in flight, with a pass of `pass_s` expected
        seconds; learn the time of drafting, if it was measured.
        """
        self.proposal = proposal
        cost_model, context = self.policy.cost_model, len(self.row.tokens)
        estimate_s = cost_model.drafting(proposal, draft.n, context, draft.rows)
        self.draft_s = draft.seconds or estimate_s
        self.expected_s = self.draft_s + pass_s
        if draft.seconds is not None:
            learn = cost_model.learn_draft
            passes = proposal.passes(draft.n)
            learn(draft.drafter, passes, proposal.lag, context, draft.seconds, draft.rows)

    def observe(self, tokens: Sequence[int], interval: Interval | None) -> None:
        """Learn from a step that committed `tokens`; `interval` is None where it cannot be timed.

        The row has them already.
        """
        if interval is not None:
            if interval.rows == 1:
                context = len(self.row.tokens)
                self.policy.observe_time(self.proposal, len(tokens), interval, context)
            self._add_time(len(tokens), interval)
        verified = self.proposal is not None and self.proposal.match > 0
        if self.unused is not None and not verified:  # a verified lookup is counted already
            pairs = list(zip(self.unused.tokens, tokens, strict=False))
            hits = next((i for i, (ours, right) in enumerate(pairs) if ours != right), len(pairs))
            self.policy.observe_shadow(self.unused, len(pairs), hits)
        self.proposal = self.unused = None

    def _add_time(self, tokens: int, interval: Interval) -> None:
        """Count the time of a step that committed `tokens`, for the statistics."""
        seconds, cost_model = interval.seconds, self.policy.cost_model
        plain = interval.plain_s
        if plain is None:
            plain = cost_model.plain_step(interval.rows, len(self.row.tokens))
        known = interval.rows > 1 or cost_model.target.knows_plain
        expected = plain
        if self.proposal is not None:
            expected = self.expected_s
            stats = self.stats.get(self.proposal.drafter)
            if stats is not None:
                drafting = min(self.draft_s, seconds)
                stats.draft_ms += 1000 * drafting
                stats.verify_ms += 1000 * (seconds - drafting)
        if plain and seconds <= CONFIG.outlier * expected and known:
            self.plain_s += tokens * plain
            self.timed_s += seconds
            self.deviation_s += abs(seconds - expected)


CATCH_UP_SLICE: Final = 256
"""Tokens that draft models read at most between two steps, beside other requests."""

FIRST_WINDOW: Final = 16
"""Tokens that a round may read first without being counted as a catch-up."""

MAX_PENDING: Final = 12
"""Tokens. More accepted tokens than that (recurrent models) are read by a pass without a draft."""


class RowChoice(NamedTuple):
    """Proposals of one row, and the choice among them."""

    record: RowRecord
    proposals: list[Proposal]
    choice: Choice


@dataclass(frozen=True, slots=True)
class PassChoice:
    """Drafts for the rows of a pass: `drafts` are (row, proposal, draft length).

    `step` prices the pass; None: no proposal is due. `measures`: a plain step takes the place of
    drafts that pay, to measure it.
    """

    rows: list[RowChoice]
    drafts: list[tuple[RowRecord, Proposal, int]] = field(default_factory=list)
    step: Pass | None = None
    measures: bool = False

    def count(self, cost_model: CostModel) -> None:
        """Have the policies of the rows count this decision, and the cost model the pass."""
        unconditional = any(row.choice.unconditional for row in self.rows)
        if self.measures or (self.drafts and not unconditional):
            context = longest_of([row.record for row in self.rows])
            cost_model.count_pass(len(self.rows), context, measures=self.measures)
        for record, proposals, choice in self.rows:
            if proposals and not choice.unconditional:
                with isolate(record.disable):
                    record.policy.record(proposals, choice)


class Drafting:
    """Drafts for the rows that share a pass."""

    def __init__(self) -> None:
        self._readable: float = inf  # tokens that draft models may read in this step
        self.widest: int | None = None  # tokens of a window at most

    def choose(self, records: Sequence[RowRecord], cost_model: CostModel) -> PassChoice:
        """Return the drafts of these rows: whose, by which proposal, how many tokens.

        Modifies nothing: `PassChoice.count` counts the choice that a step keeps to.
        """
        proposals = [_proposals(record, self.widest) for record in records]
        due: list[list[Proposal]] = []
        for record, offered in zip(records, proposals, strict=True):
            due.append(record.policy.due(offered) if offered else offered)
        rows = []
        for record, offered in zip(records, proposals, strict=True):
            rows.append(RowChoice(record, offered, Choice(plain(record.row.pending))))
        if not any(due):
            return PassChoice(rows)
        context = longest_of(records)
        sharing = Counter([p.drafter for p in chain.from_iterable(due) if not p.free])
        step = cost_model.next_pass(len(records), context, sharing)
        for i, (record, offered, undrafted) in enumerate(rows):
            with isolate(record.disable):
                choice = record.policy.choose(due[i], undrafted.best.forecast.pending, step)
                rows[i] = RowChoice(record, offered, choice)
        decision = rows[0].choice.best.decision
        if len(rows) > 1:
            decision = step.decide([row.choice.best.forecast for row in rows])
        unconditional = any(row.choice.unconditional for row in rows)
        measures = decision.pays and not unconditional
        measures = measures and cost_model.plain_due(len(rows), context, decision.speedup)
        drafts: list[tuple[RowRecord, Proposal, int]] = []
        for record, _, choice in rows if decision.pays and not measures else ():
            proposal, forecast, _ = choice.best
            k = forecast.draft_length(decision.width, decision.rate)
            if k and proposal is not None:
                drafts.append((record, proposal, k))
        return PassChoice(rows, drafts, step, measures)

    def draft(self, records: Sequence[RowRecord], cost_model: CostModel) -> dict[int, Draft]:
        """Draft for the rows of a pass, by row, and record that the drafts are in flight."""
        asked: dict[str, list[tuple[RowRecord, int]]] = {}
        proposals: dict[int, Proposal] = {}
        choice = self.choose(records, cost_model)
        choice.count(cost_model)
        for record, proposal, k in choice.drafts:
            ready = self._ready(record, proposal)
            if ready is not None:
                proposals[record.row.id] = ready
                asked.setdefault(ready.drafter, []).append((record, k))
        drafts: dict[int, Draft] = {}
        for name, limits in asked.items():
            drafts |= _draft_by(name, limits)
        drafting = [record for record in records if record.row.id in drafts]
        widths = [record.row.pending + drafts[record.row.id].n for record in drafting]
        pass_s = choice.step.seconds(max(widths)) if widths and choice.step is not None else 0.0
        for record in drafting:
            record.begin_round(proposals[record.row.id], drafts[record.row.id], pass_s)
        return drafts

    def _ready(self, record: RowRecord, proposal: Proposal) -> Proposal | None:
        """Return the proposal to draft; None where its drafter reads first."""
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

    def catch_up(
        self, rows: Sequence[Row], records: Mapping[int, RowRecord], *, alone: bool
    ) -> bool:
        """Let the first draft model that catches up read a slice. Return whether one did.

        Before the drafts of a step, in which they may read a slice too. A row that is `alone` reads
        all that it lags at once.
        """
        self._readable = inf if alone else CATCH_UP_SLICE
        for row in rows:
            record = records.get(row.id)
            if record is not None and (drafter := record.reading) is not None:
                self._readable, left = 0, 0
                with isolate(record.disable_one, drafter):
                    left = drafter.catch_up(row, CATCH_UP_SLICE)
                record.reading = drafter if left > 1 else None
                return True
        return False


def longest_of(records: Sequence[RowRecord]) -> int:
    """Return the context of a pass: the tokens of its longest row."""
    return max([len(record.row.tokens) for record in records])


def _proposals(record: RowRecord, widest: int | None) -> list[Proposal]:
    """Return the proposals of the row's drafters. A drafter that catches up proposes nothing."""
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
    return proposals


def _draft_by(name: str, limits: Sequence[tuple[RowRecord, int]]) -> dict[int, Draft]:
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
