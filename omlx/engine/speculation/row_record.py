"""One row's drafters, what its steps taught, and its statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from omlx.engine.device_errors import isolate
from omlx.engine.row import Interval, Row
from omlx.engine.speculation.config import CONFIG
from omlx.engine.speculation.drafter import Drafter
from omlx.engine.speculation.policy import GateState, RowPolicy
from omlx.engine.speculation.proposal import Draft, Proposal
from omlx.engine.strategy import Clause
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
    tokens.
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
    unused: Proposal | None = None

    def drafter(self, name: str) -> Drafter | None:
        return next((drafter for drafter in self.drafters if drafter.name == name), None)

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

    def disable(self, error: Exception) -> None:
        """Disable all drafters after an error that may be any one's."""
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
        """Record that a draft of this proposal is in flight, with a pass that is expected to take
        `pass_s` seconds; learn the time of drafting if it was taken.
        """
        self.proposal = proposal
        cost_model, context = self.policy.cost_model, len(self.row.tokens)
        estimate_s = cost_model.drafting(proposal, draft.n, context, draft.rows)
        self.draft_s = draft.seconds or estimate_s
        self.expected_s = self.draft_s + pass_s
        if draft.seconds is not None:
            learn = cost_model.learn_draft
            learn(draft.drafter, draft.n, proposal.lag, context, draft.seconds, draft.rows)

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
