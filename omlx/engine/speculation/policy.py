"""Policy: which drafter drafts in the next round, and how many tokens, to maximise throughput.

    estimate   cost model and acceptance: what a draft of each length costs and brings
    decide     the draft with the largest throughput, if it is faster than plain decoding
    explore    else, within a budget, a probe of a draft model that has been idle

A lookup needs no probe: unused, it is compared with the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from math import inf
from typing import NamedTuple, cast

from omlx.draft_length import DEFAULT_DRAFT_LENGTH, MAX_DRAFT_LENGTH, DraftLength
from omlx.engine.speculation.acceptance import Acceptance, ExplorationBudget, Savings, bin_of
from omlx.engine.speculation.config import CONFIG
from omlx.engine.speculation.cost_model import PLAIN, SHORT_LAG, CostModel
from omlx.engine.speculation.decide import Decision, Pass, RowForecast, certain
from omlx.engine.speculation.drafter import PROMPT_END, Proposal
from omlx.engine.step.row import Interval
from omlx.engine.types import ATTENTION_ALONE, Traits
from omlx.errors import Reason


class GateState(StrEnum):
    OBSERVING = "observing"
    ON = "on"
    OFF = "off"


@dataclass(slots=True)
class DrafterRecord:
    """Evidence about one drafter in one request.

    `skips` counts, by bin, decisions for which it need not be evaluated. `speedup` is a moving
    average of forecasts, None before the first. `idle` counts the decisions since its draft paid.
    `poor`: nearly always wrong in earlier requests; `used`: a draft was verified in this one.
    """

    acceptance: Acceptance
    poor: bool = False
    used: bool = False
    idle: int = 0
    speedup: float | None = None
    skips: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class History:
    """Evidence of a model's earlier requests: acceptance by drafter, savings for probes."""

    acceptance: dict[str, Acceptance] = field(default_factory=dict)
    savings: Savings = field(default_factory=Savings)


class Candidate(NamedTuple):
    """A proposal for a row's next pass, its forecast, and the best width for this row alone."""

    proposal: Proposal | None
    forecast: RowForecast
    decision: Decision


class Choice(NamedTuple):
    """The best candidate of a row, and those that were compared.

    `probe`: the best is a trial; `unconditional`: drafted whatever it costs.
    """

    best: Candidate
    evaluated: tuple[Candidate, ...] = ()
    probe: bool = False
    unconditional: bool = False


def plain(pending: int) -> Candidate:
    return Candidate(None, RowForecast(pending), Decision(pending, 0.0, pays=False))


class RowPolicy:
    """The policy of one request.

    `cost_model` and `history` belong to the model, which has these `traits`, and outlive the
    request.
    """

    def __init__(
        self,
        cost_model: CostModel,
        history: History,
        draft_length: DraftLength | None = None,
        traits: Traits = ATTENTION_ALONE,
    ) -> None:
        self.cost_model = cost_model
        self.draft_length = draft_length or DEFAULT_DRAFT_LENGTH
        self.records: dict[str, DrafterRecord] = {}
        self._fixed = self.draft_length.fixed is not None
        self._history = history
        self._traits = traits
        self._budget = ExplorationBudget(history.savings)
        self._steps = 0
        self._drafted = 0  # tokens of the draft in flight

    def due(self, proposals: Sequence[Proposal]) -> list[Proposal]:
        """Return the proposals to evaluate in this decision: evaluation takes time too.

        Only the first if it is unconditional: drafted whatever it costs.
        """
        if self._is_unconditional(proposals):
            return proposals[0].readings[-1:]
        due = []
        for proposal in chain.from_iterable([p.readings for p in proposals]):
            skips = self.record_of(proposal).skips.get(bin_of(proposal.match, 0), 0)
            if skips < 1 and proposal.max_length >= self.min_length(proposal):
                due.append(proposal)
        return due

    def choose(self, proposals: Sequence[Proposal], pending: int, step: Pass) -> Choice:
        """Return the best draft after `pending` tokens, or a probe in place of a plain step.

        `proposals` are due. A row that shares its pass is not probed. Modifies nothing: `record`
        does, once a step.
        """
        if self._is_unconditional(proposals):
            longest = min(proposals[0].max_length, self.draft_length.max)
            forecast = certain(pending, longest, fixed=self._fixed or step.rows == 1)
            candidate = Candidate(proposals[0], forecast, step.decide([forecast]))
            return Choice(candidate, unconditional=True)
        if not step.plain_s:
            return Choice(plain(pending))
        candidates = tuple([self.evaluate(proposal, pending, step) for proposal in proposals])
        best = max(candidates, key=lambda c: c.decision.speedup, default=plain(pending))
        if pending == step.rows == 1:
            probe = self._probe(candidates, step, best)
            if probe is not None:
                return Choice(probe, candidates, probe=True)
        return Choice(best, candidates)

    def evaluate(self, proposal: Proposal, pending: int, step: Pass) -> Candidate:
        """Return the best draft of a proposal for this row."""
        forecast = self._forecast(proposal, pending, step)
        return Candidate(proposal, forecast, step.decide([forecast]))

    def record(self, proposals: Sequence[Proposal], choice: Choice) -> None:
        """Count a step's decision among `proposals`, due or not. Not for unconditional ones."""
        for proposal in chain.from_iterable([p.readings for p in proposals]):
            record, index = self.record_of(proposal), bin_of(proposal.match, 0)
            record.idle += 1
            record.skips[index] = record.skips.get(index, 0) - 1
        best = choice.best.proposal
        for evaluated, _, decision in choice.evaluated:
            proposal = cast(Proposal, evaluated)
            record, skipped = self.record_of(proposal), 0
            before = decision.speedup if record.speedup is None else record.speedup
            record.speedup = 0.9 * before + 0.1 * decision.speedup
            if choice.probe and proposal is best:
                skipped = 0
            elif not (proposal.free or decision.pays) and record.speedup < CONFIG.min_speedup:
                skipped = CONFIG.skipped_evaluations
            elif proposal.free and decision.speedup < CONFIG.hopeless_speedup:
                skipped = CONFIG.skipped_evaluations // 2
            record.skips[bin_of(proposal.match, 0)] = skipped
        if best is not None and choice.best.decision.pays and not choice.probe:
            self.record_of(best).idle = 0

    def _is_unconditional(self, proposals: Sequence[Proposal]) -> bool:
        """Whether the first proposal is drafted whatever it costs."""
        return bool(proposals) and (self._fixed or proposals[0].certain)

    def _forecast(self, proposal: Proposal, pending: int, step: Pass) -> RowForecast:
        """Return what drafts of each length bring, and cost in addition to the pass."""
        record, verify, context = self.record_of(proposal), self.cost_model.verify, step.context
        known = 2 * self.cost_model.widest(step.rows) - pending
        shortest, longest = self.min_length(proposal), self._max_length(proposal, known)
        acceptance = record.acceptance
        if proposal.restarts and not acceptance.known:  # as good as one that reads less
            acceptance = self.records[proposal.drafter + PROMPT_END].acceptance
        reach = acceptance.reach(proposal.match, shortest, longest)
        single_s = verify(1, context)
        sharing = max(1, step.sharing[proposal.drafter])
        draft_s = self.cost_model.draft_pass(proposal, context, sharing)
        catch_up_s = self.cost_model.catch_up(proposal.drafter, proposal.lag, context)
        per_round_s = catch_up_s / max(CONFIG.catch_up_rounds, self._steps)
        tokens, seconds, rejection_s = [1.0], [0.0], 0.0
        for k in range(1, len(reach)):
            # after a rejection the accepted tokens are computed again
            if self._traits.replays(pending + k):
                if step.rows > 1 and reach[k] < CONFIG.likely:
                    break
                again_s = max(0.0, verify(pending + k, context) - single_s)
                rejection_s += (reach[k - 1] - reach[k]) * again_s
            tokens.append(tokens[-1] + reach[k])
            seconds.append(per_round_s + proposal.passes(k) * draft_s + rejection_s)
        return RowForecast(pending, tokens, seconds, shortest)

    def _probe(
        self, candidates: Sequence[Candidate], step: Pass, best: Candidate
    ) -> Candidate | None:
        """Return a trial draft of a draft model that is not the best candidate, or None.

        An unmeasured drafter comes first, and may take more. A measured drafter must be idle, while
        nothing else pays. A probe has the draft length that came closest to paying.
        """
        known, new = [], []
        paying = best.proposal if best.decision.pays else None
        for candidate in candidates:
            proposal = candidate.proposal
            if proposal is None or proposal.free or proposal is paying:
                continue
            if paying is not None and proposal.drafter != paying.drafter:
                continue
            record = self.record_of(proposal)
            steps = self._probe_steps(proposal, candidate, step)
            # Less than, since `record` counts this decision, too.
            if record.idle < CONFIG.skipped_evaluations or steps > CONFIG.most_savings:
                continue
            if not record.acceptance.known:
                end = self.records.get(proposal.drafter + PROMPT_END)
                if paying is None and proposal.restarts and end and end.acceptance.fair:
                    steps -= CONFIG.most_savings  # on credit: what pays saves it soon enough
                new.append((steps, record, candidate))
            elif paying is None:
                known.append((steps, record, candidate))
        for steps, record, candidate in new or known:
            if self._budget.may_spend(steps, once=bool(new), in_advance=not record.poor):
                return candidate._replace(decision=candidate.decision._replace(pays=True))
        return None

    def _probe_steps(self, proposal: Proposal, candidate: Candidate, step: Pass) -> float:
        """Return the plain steps that a probe loses if no token is accepted; infinity if it would
        not pay even if all were.
        """
        longest = min(proposal.max_length, self.draft_length.max)
        draft_s = self.cost_model.draft_pass(proposal, step.context)
        perfect = certain(1, longest, draft_s * proposal.passes(longest) / longest)
        if not step.decide([perfect]).pays:
            return inf
        _, forecast, decision = candidate
        cost_s = step.seconds(decision.width) - step.plain_s
        cost_s += forecast.seconds[forecast.draft_length(decision.width)]
        cost_s += self.cost_model.catch_up(proposal.drafter, proposal.lag, step.context)
        return cost_s / step.plain_s

    def observe_catch_up(self, proposal: Proposal, context: int) -> None:
        """Count the time of a catch-up that is no part of a round."""
        seconds = self.cost_model.draft(proposal.drafter, proposal.lag, context)
        plain_s = self.cost_model.verify(PLAIN, context)
        if plain_s:
            self._budget.add_loss(seconds / plain_s)

    def observe_verification(self, proposal: Proposal, k: int, accepted: int) -> None:
        """Learn from a verified draft of k tokens."""
        record = self.record_of(proposal)
        record.used = True
        record.acceptance.learn(proposal.match, k, accepted)
        self._drafted = k

    def observe_shadow(self, proposal: Proposal, k: int, accepted: int) -> None:
        """Learn from a lookup of k tokens that was compared with the output and not used."""
        self.record_of(proposal).acceptance.learn(proposal.match, k, accepted)

    def observe_time(
        self, proposal: Proposal | None, tokens: int, interval: Interval, context: int
    ) -> None:
        """Learn from a round, or a plain step, that committed `tokens` after `interval`.

        The known time of drafting is subtracted; the remainder is the target's pass with all the
        host's work around it.
        """
        seconds, width, draft_s = interval.seconds, interval.width, 0.0
        plain_s = self.cost_model.verify(PLAIN, context)
        self._steps += 1
        if proposal is not None:
            draft_s = self.cost_model.drafting(proposal, self._drafted, context)
            expected_s = draft_s + self.cost_model.verify(width, context)
            round_s = min(seconds, CONFIG.outlier * expected_s)
            if plain_s:
                self._budget.add_loss(round_s / plain_s - tokens)
            if proposal.lag > SHORT_LAG:  # the draft's time is an estimate
                return
        if self.cost_model.target.learn(width, context, seconds - draft_s) and plain_s:
            self._budget.add_time(seconds / plain_s)

    def record_of(self, proposal: Proposal) -> DrafterRecord:
        """Return the drafter's record; a new one begins with the model's history."""
        record = self.records.get(proposal.acceptance_key)
        if record is None:
            start = CONFIG.match_rates if proposal.match else (CONFIG.draft_rate,)
            prior = self._history.acceptance.setdefault(proposal.acceptance_key, Acceptance(start))
            record = DrafterRecord(Acceptance(prior.start, prior), prior.poor)
            self.records[proposal.acceptance_key] = record
        return record

    def state(self, drafter: str) -> tuple[GateState, Reason | None]:
        """Return the state of a drafter in this request, and why unless it is on."""
        records = [self.records.get(drafter), self.records.get(drafter + PROMPT_END)]
        seen = [record for record in records if record is not None]
        speedups = [record.speedup for record in seen if record.speedup is not None]
        if not speedups and not any(record.used for record in seen):
            return GateState.OBSERVING, Reason("spec.observing")
        if speedups and max(speedups) < CONFIG.min_speedup:
            speedup = round(max(speedups), 2)
            return GateState.OFF, Reason("spec.off.does_not_pay", {"speedup": speedup})
        return GateState.ON, None  # drafts of fixed length and certain ones are not evaluated

    def min_length(self, proposal: Proposal) -> int:
        """Return the shortest draft to make; of contradictory bounds the upper one holds."""
        bounds = proposal.clause.draft_length
        longest = min(self.draft_length.max, bounds.max or MAX_DRAFT_LENGTH)
        return min(max(1, self.draft_length.min, bounds.min), longest)

    def _max_length(self, proposal: Proposal, known: int) -> int:
        """Return the longest draft to forecast; `known` is not far beyond the measured widths."""
        longest = max(CONFIG.first_length, known)
        if not self.record_of(proposal).used:
            longest = min(longest, self.draft_length.initial)
        longest = max(longest, self.min_length(proposal))
        return min(proposal.max_length, self.draft_length.max, longest)
