"""The speculator of a loaded model: the drafters of each row, their drafts and results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final

from omlx.draft_length import DEFAULT_DRAFT_LENGTH, DraftLength
from omlx.engine.device_errors import isolate
from omlx.engine.speculation.config import CONFIG
from omlx.engine.speculation.cost_model import SHORT_LAG, CostModel
from omlx.engine.speculation.drafter import Draft, Drafter, GrammarDrafter
from omlx.engine.speculation.drafting import Drafting, PassChoice, RowRecord, longest_of
from omlx.engine.speculation.policy import GateState, History, RowPolicy
from omlx.engine.speculation.strategy import TRAINED, Clause, Strategy
from omlx.engine.step.row import Interval, Row
from omlx.engine.types import ATTENTION_ALONE, Request, Traits
from omlx.errors import Reason
from omlx.records import DrafterStats, Gate

DRAFT_MODEL: Final = "draft"
"""The kind of draft models."""

MISSING: Final = {
    DRAFT_MODEL: Reason("spec.off.no_draft_model"),
    "mtp": Reason("spec.off.no_head"),
    "eagle": Reason("spec.off.no_drafter", {"kind": "EAGLE-3"}),
    "block": Reason("spec.off.no_drafter", {"kind": "DFlash, DSpark"}),
}
"""Why a model has none of a kind, where nothing else is known."""

REQUESTED: Final = Reason("spec.off.requested")


@dataclass(slots=True)
class Speculator:
    """The drafters of one loaded model and the record of each row.

    `off_reason` says why none may draft (a cache that cannot be rolled back), `missing` why there
    is no drafter of a kind. `draft_length` holds for requests without bounds of their own. `traits`
    are those of the target. A window has at most `widest` tokens; None: no bound.
    """

    drafters: Sequence[Drafter]
    off_reason: Reason | None = None
    missing: Mapping[str, Reason] = field(default_factory=lambda: dict(MISSING))
    draft_length: DraftLength = DEFAULT_DRAFT_LENGTH
    traits: Traits = ATTENTION_ALONE
    cost_model: CostModel = field(default_factory=CostModel)
    widest: int | None = None
    _history: History = field(default_factory=History)
    _rows: dict[int, RowRecord] = field(default_factory=dict)
    _refused: dict[int, Reason | None] = field(default_factory=dict)
    _grammar: GrammarDrafter = field(default_factory=GrammarDrafter)
    _drafting: Drafting = field(default_factory=Drafting)
    _asked: dict[int, PassChoice] = field(default_factory=dict)  # by the first row of a pass

    def __post_init__(self) -> None:
        self._drafting.widest = self.widest

    def refusal(self, row: Row, batch_refusal: Reason | None = None) -> Reason | None:
        """Return why a row may not draft, or None. `batch_refusal` is that of its batch."""
        if row.request.speculation.strategy.off:
            return REQUESTED
        if self.off_reason is not None:
            return self.off_reason
        record = self.record_of(row)
        if not record.drafters:
            strategy = row.request.speculation.strategy
            missing = (why for kind, why in self.missing.items() if strategy.clause(kind))
            return next(chain(record.off_reasons.values(), missing), MISSING[DRAFT_MODEL])
        return batch_refusal

    def open(self, row: Row) -> None:
        """Let the drafters of a row begin, before its prompt is read."""
        if self.refusal(row) is not None:
            return
        record = self.record_of(row)
        for drafter in record.drafters:
            with isolate(record.disable_one, drafter):
                drafter.open(row)

    def record_refusal(self, row: Row, batch_refusal: Reason | None = None) -> bool:
        """Store why the row may not draft, which `reason` reports. Return whether it may not."""
        self._refused[row.id] = self.refusal(row, batch_refusal)
        return self._refused[row.id] is not None

    def wants(self, rows: Sequence[Row]) -> bool:
        """Return whether one of these rows would draft in their next pass: if so, the step in
        flight is committed first, and `draft` decides with its tokens.

        The answer is remembered for `decode_plainly`; nothing else changes.
        """
        if None not in [self.refusal(row) for row in rows]:
            return False
        with isolate():
            choice = self._drafting.choose(self._records(rows), self.cost_model)
            self._asked = {} if choice.drafts else {**self._asked, rows[0].id: choice}
            return bool(choice.drafts)
        return True  # `draft` raises too, and disables the drafters

    def decode_plainly(self, rows: Sequence[Row]) -> None:
        """Keep to what `wants` has answered: the next pass of these rows has no draft."""
        choice = self._asked.pop(rows[0].id, None)
        if choice is not None:
            choice.count(self.cost_model)

    def draft(self, rows: Sequence[Row]) -> dict[int, Draft]:
        """Draft for the rows of one pass, by row; those that are left out decode plainly."""
        self._asked.pop(rows[0].id, None)
        return self._drafting.draft(self._records(rows), self.cost_model)

    def catch_up(self, rows: Sequence[Row], *, alone: bool) -> bool:
        """Let draft models of these rows catch up, as `Drafting.catch_up` says."""
        return self._drafting.catch_up(rows, self._rows, alone=alone)

    def observe_pass(self, rows: Sequence[Row], interval: Interval) -> Interval:
        """Learn from a pass that several rows shared, before their commits. Return the interval
        with the estimate of a plain step of the batch.
        """
        records = self._records(rows)
        self._learn_batch(records, interval)
        plain_s = self.cost_model.plain_step(interval.rows, longest_of(records))
        return replace(interval, plain_s=plain_s)

    def _learn_batch(self, records: Sequence[RowRecord], interval: Interval) -> None:
        seconds = interval.seconds
        for record in records:
            if record.proposal is not None and not record.proposal.free:
                seconds -= record.draft_s
                if record.proposal.lag > SHORT_LAG:  # an estimate, which teaches nothing
                    return
        self.cost_model.learn_batch(interval.rows, interval.width, longest_of(records), seconds)

    def disable(self, row: Row, error: Exception) -> None:
        """Disable a row's drafters after an error of which drafter is unknown."""
        self.record_of(row).disable(error)

    def observe_verification(
        self, row: Row, drafter: str, proposed: int, accepted: int, outcome: str, rollback: str
    ) -> None:
        """Count a verified window: its `outcome`, and by which `rollback` the cache went back."""
        record = self.record_of(row)
        drafted_by = record.drafter(drafter)
        if drafted_by is not None:
            with isolate(record.disable_one, drafted_by) as isolated:
                drafted_by.observe(row, accepted)
            if isolated.error is not None:
                return
        if record.proposal is not None:
            record.policy.observe_verification(record.proposal, proposed, accepted)
        stats = record.stats.setdefault(drafter, DrafterStats())
        stats.add_round(proposed, accepted, outcome, rollback)

    def observe_prefill(self, row: Row, *, alone: bool) -> None:
        """Learn how long a prompt took if no other row was active, no tower and no disk."""
        tokens, clock = row.prompt_len - row.cached, row.clock
        only_computed = alone and not (row.request.spans or row.fetched or row.displaced)
        if only_computed and tokens > CONFIG.widest_window:
            seconds = clock.first_token - clock.admitted
            self.cost_model.target.learn_chunk(tokens, tokens, seconds)

    def observe_commit(self, row: Row, new: Sequence[int], interval: Interval | None) -> None:
        """Learn from tokens just committed; `interval` is None where the step cannot be timed."""
        record = self._rows.get(row.id)
        if record is not None:
            with isolate(record.disable):
                record.observe(new, interval)

    def reason(self, row: Row) -> Reason:
        """Return whether this request speculated, and if not, why not."""
        record = self._rows.get(row.id)
        if record is not None and any(stats.rounds for stats in record.stats.values()):
            return Reason("spec.on")
        refusal = self._refused.get(row.id)
        if refusal is not None:
            return refusal
        if len(row.tokens) <= row.prompt_len + 1:
            return Reason("spec.off.no_chance")
        for gate in record.gates.values() if record is not None else ():
            if gate.state is GateState.OFF and gate.reason:
                return gate.reason
        return Reason("spec.observing")

    def stats(self, row_id: int) -> dict[str, DrafterStats]:
        record = self._rows.get(row_id)
        return {} if record is None else record.stats

    def effective_strategy(self, row: Row) -> Strategy:
        """Return the request's strategy, reduced to the drafters of this model."""
        kinds = {drafter.kind for drafter in self.drafters if self.off_reason is None}
        return row.request.speculation.strategy.among(kinds)

    def gates(self, row: Row) -> dict[str, Gate]:
        """Return the state of each drafter, by name; missing trained ones where named."""
        record, strategy = self._rows.get(row.id), row.request.speculation.strategy
        gates = {} if record is None else record.gates
        for kind, reason in self.missing.items():
            clause = strategy.clause(kind)
            unset = kind in TRAINED and reason == MISSING[kind]
            if clause is not None and not (unset and clause.name != kind):
                gates[kind] = Gate(GateState.OFF, reason)
        return gates

    def speedup(self, row: Row) -> float | None:
        """Return the speed-up over the row's timed steps; None if it is not measured."""
        record = self._rows.get(row.id)
        return None if record is None else record.speedup

    def step_deviation(self, row: Row) -> float:
        """Return the share by which the row's timed steps differed from their estimates."""
        record = self._rows.get(row.id)
        return 0.0 if record is None else record.step_deviation

    def drop(self, row_id: int) -> None:
        """Forget a row."""
        self._rows.pop(row_id, None)
        self._refused.pop(row_id, None)
        self._asked.pop(row_id, None)
        for drafter in (self._grammar, *self.drafters):
            with isolate():
                drafter.drop(row_id)

    def store(self, row: Row) -> None:
        """Let the drafters cache the prefix of a row that ended without an error."""
        for drafter in self.drafters:
            with isolate() as outcome:
                drafter.store(row)
            if outcome.error is not None:  # unproven prefixes: without them only slower
                with isolate():
                    drafter.clear()

    def cache_bytes(self, request: Request, tokens: int) -> int:
        """Return the bytes of the drafters' KV caches for a row of `tokens` tokens."""
        return sum(self._cache_bytes(drafter, request, tokens) for drafter in self.drafters)

    def cache_growth(self, rows: Iterable[tuple[Request, int]]) -> int:
        """Return the bytes by which the drafters' KV caches grow until `rows` have their tokens."""
        rows, growth = list(rows), 0
        for drafter in self.drafters:
            need = sum(self._cache_bytes(drafter, *row) for row in rows)
            growth += max(0, need - drafter.held_bytes)
        return growth

    def _cache_bytes(self, drafter: Drafter, request: Request, tokens: int) -> int:
        if self.off_reason is not None or request.speculation.strategy.off:
            return 0
        return drafter.cache_bytes(tokens)

    def clear(self) -> None:
        """Evict all prefixes that drafters cached."""
        for drafter in self.drafters:
            with isolate():
                drafter.clear()

    def set_prefix_budget(self, max_bytes: int) -> None:
        """Let each drafter cache at most `max_bytes` of prefixes."""
        for drafter in self.drafters:
            with isolate():
                drafter.set_prefix_budget(max_bytes)

    def record_of(self, row: Row) -> RowRecord:
        """Return the record of a row, which begins with the first call."""
        record = self._rows.get(row.id)
        if record is None:
            record = self._rows[row.id] = self._new_record(row)
        return record

    def _records(self, rows: Sequence[Row]) -> list[RowRecord]:
        return [self.record_of(row) for row in rows]

    def _new_record(self, row: Row) -> RowRecord:
        length = row.request.speculation.draft_length or self.draft_length
        drafters: list[Drafter] = []
        clauses: dict[str, Clause] = {}
        off_reasons: dict[str, Reason] = {}
        for drafter in (self._grammar, *self.drafters):
            clause = self._clause(drafter, row)
            if clause is None:
                continue
            clauses[drafter.name] = clause
            refusal = drafter.refusal(row)
            if length.max < 1:
                refusal = Reason("spec.off.zero_window")
            if refusal is None:
                drafters.append(drafter)
            else:
                off_reasons[drafter.name] = refusal
        policy = RowPolicy(self.cost_model, self._history, length, self.traits)
        return RowRecord(row, policy, drafters, clauses, off_reasons)

    def _clause(self, drafter: Drafter, row: Row) -> Clause | None:
        """Return the bounds of a drafter in a row; None where the strategy leaves it out."""
        strategy, masked = row.request.speculation.strategy, row.request.mask is not None
        if strategy.off or self.off_reason is not None:
            return None
        if drafter is self._grammar:  # under every strategy that is not off
            return Clause(drafter.kind) if masked else None
        auto = strategy.clauses[0].name == "auto"
        if auto and drafter.kind in TRAINED and DRAFT_MODEL not in self.missing:
            return None  # a draft model was set, while a head comes with the weights
        return strategy.clause(drafter.kind)
