"""Policy: which drafter drafts in the next round, and how many tokens, to maximise throughput.

    estimate   cost model and acceptance: what a draft of each length costs and brings
    decide     the draft with the largest throughput, if it is faster than plain decoding
    explore    else, within a budget, a probe of a draft model that has been idle

A lookup needs no probe: unused, it is compared with the output.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from enum import StrEnum

from omlx.draft_length import DEFAULT_DRAFT_LENGTH, MAX_DRAFT_LENGTH, DraftLength
from omlx.engine.sequence import Interval
from omlx.engine.speculation.acceptance import Acceptance, bin_of
from omlx.engine.speculation.config import CONFIG
from omlx.engine.speculation.cost_model import SHORT_LAG, CostModel
from omlx.engine.speculation.decide import Decision, RowForecast, decide
from omlx.engine.speculation.exploration import ExplorationBudget
from omlx.engine.speculation.proposal import Choice, Proposal
from omlx.errors import Reason


class GateState(StrEnum):
    OBSERVING = "observing"
    ON = "on"
    OFF = "off"


@dataclass(slots=True)
class DrafterRecord:
    """Evidence about one drafter in one request.

    `idle_steps` counts decisions since its last draft. `skips` counts, by bin, decisions for which
    it need not be evaluated. `speedup` is a moving average of forecasts, None before the first.
    """

    acceptance: Acceptance
    certain: bool = False
    poor: bool = False
    best_length: int = 0
    saved_s: float = 0.0
    used: bool = False
    probing: bool = False
    idle_steps: int = 0
    speedup: float | None = None
    skips: dict[int, int] = field(default_factory=dict)


class RowPolicy:
    """Decides for one request.

    `cost_model` and `priors` (acceptance by drafter) belong to the model and outlive the request.
    Models with `recurrent` layers leave accepted tokens pending after a rejection. `skip_steps`
    counts the coming decisions that need no evaluation unless a lookup finds something.
    """

    def __init__(
        self,
        cost_model: CostModel,
        priors: dict[str, Acceptance],
        draft_length: DraftLength | None = None,
        *,
        recurrent: bool = False,
    ) -> None:
        self.cost_model = cost_model
        self.draft_length = draft_length or DEFAULT_DRAFT_LENGTH
        self.skip_steps = 0
        self.records: dict[str, DrafterRecord] = {}
        self._priors = priors
        self._recurrent = recurrent
        self._budget = ExplorationBudget()
        self._drafted = 0  # tokens of the draft in flight

    def skip(self, proposals: Seq[Proposal]) -> bool:
        """Return True, and count the decision as made, if no candidate could win it."""
        if not self.skip_steps or any(proposal.free for proposal in proposals):
            return False
        self.skip_steps -= 1
        for proposal in proposals:
            record = self.record_of(proposal)
            record.idle_steps += 1
            record.skips[0] = record.skips.get(0, 0) - 1
        return True

    def choose(self, proposals: Seq[Proposal], pending: int, context: int) -> Choice:
        """Return what to draft after `pending` tokens.

        Call it for every step that is not skipped; again once the step in flight is committed.
        """
        self.skip_steps = 0
        fixed = self.draft_length.fixed is not None
        if proposals and (fixed or proposals[0].certain):
            return proposals[0], min(proposals[0].max_length, self.draft_length.max)
        if fixed or self.cost_model.target.plain(context) is None:
            return None
        proposals = [option for option in proposals if option.max_length >= self.min_length(option)]
        evaluated = [option for option in proposals if self.evaluates(option)]
        best, throughput = None, 0.0
        for proposal in evaluated:
            width, speedup, pays = self.decide(proposal, pending, context)
            if pays and speedup > throughput:
                best, throughput = (proposal, width - pending), speedup
        for proposal in proposals:
            record = self.record_of(proposal)
            record.idle_steps += 1
            if best is not None and best[0] is proposal:
                record.idle_steps, record.probing = 0, False
        if best is None and pending == 1:
            best = self._explore(evaluated, context)
            self.skip_steps = self._steps_to_skip(proposals)
        return best

    def decide(self, proposal: Proposal, pending: int, context: int) -> Decision:
        """Return the best draft of a proposal, and record what is forecast of it."""
        forecast = self.forecast(proposal, pending, context)
        shortest, longest = pending + self.min_length(proposal), pending + len(forecast.tokens) - 1
        widths = [width for width in CONFIG.widths if shortest <= width < longest]
        decision = decide(
            [forecast],
            [*widths, longest],
            lambda width: self.cost_model.verify(width, context),
            self.cost_model.plain_pass(1, context),
        )
        self.add_forecast(proposal, decision.speedup)
        self.record_of(proposal).best_length = decision.width - pending
        return decision

    def forecast(self, proposal: Proposal, pending: int, context: int, n: int = 1) -> RowForecast:
        """Return what drafts of each length bring, and cost in addition to the pass. `n` rows share
        a draft model's passes."""
        record, verify = self.record_of(proposal), self.cost_model.verify
        shortest, longest = self.min_length(proposal), self._max_length(proposal, pending)
        reach = record.acceptance.reach(proposal.match, shortest, longest)
        single = verify(1, context)
        draft_s = self.cost_model.draft_pass(proposal, context, n)
        fixed_s = (
            self.cost_model.catch_up(proposal.drafter, proposal.lag, context)
            / CONFIG.catch_up_rounds
        )
        tokens, seconds = [1.0], [0.0]
        rejection_s = 0.0
        for k in range(1, len(reach)):
            if self._recurrent:  # after a rejection the accepted tokens are computed again
                wider = max(0.0, verify(pending + k, context) - single)
                rejection_s += (reach[k - 1] - reach[k]) * wider
            tokens.append(tokens[-1] + reach[k])
            seconds.append(fixed_s + k * draft_s + rejection_s)
        return RowForecast(pending, tokens, seconds)

    def reads_whole(self, proposal: Proposal, context: int) -> bool:
        """Return whether a draft model that drafts now is to read what it skipped of the prompt.

        It does where the budget allows it, and once it has saved as much time as that takes.
        """
        if not proposal.skipped or self.draft_length.fixed is not None:
            return proposal.skipped > 0
        record = self.record_of(proposal)
        price = self.cost_model.draft(proposal.drafter, proposal.skipped + proposal.lag, context)
        if record.used:
            return record.saved_s >= price
        plain = self.cost_model.plain_pass(1, context)
        return not record.poor and self._budget.may_spend(price, plain)

    def observe_catch_up(self, proposal: Proposal, context: int) -> None:
        """Count the time of a catch-up that is no part of a round."""
        seconds = self.cost_model.draft(proposal.drafter, proposal.lag, context)
        self._budget.add_round(seconds, 0.0)
        self.record_of(proposal).saved_s -= seconds

    def observe_verification(self, proposal: Proposal, k: int, accepted: int) -> None:
        """Learn from a draft of k tokens that was verified."""
        record = self.record_of(proposal)
        record.used, record.idle_steps = True, 0
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
        seconds, width = interval.seconds, interval.width
        drafting = 0.0
        if proposal is not None:
            drafting = self.cost_model.drafting(proposal, self._drafted, context)
            limit = CONFIG.outlier * (drafting + self.cost_model.verify(width, context))
            plain = tokens * self.cost_model.plain_pass(1, context)
            self._budget.add_round(min(seconds, limit), plain)
            self.record_of(proposal).saved_s += plain - min(seconds, limit)
            if proposal.lag > SHORT_LAG:  # its time is an estimate, which teaches nothing
                return
        pass_seconds = seconds - drafting
        if pass_seconds > 0.0 and self.cost_model.target.learn(width, context, pass_seconds):
            self._budget.add_time(seconds)

    def record_of(self, proposal: Proposal) -> DrafterRecord:
        """Return the drafter's record; a new one begins with the model's history."""
        record = self.records.get(proposal.drafter)
        if record is None:
            start: tuple[float, ...] = (CONFIG.draft_rate,)
            if proposal.match:
                start = CONFIG.match_rates
            prior = self._priors.setdefault(proposal.drafter, Acceptance(start))
            acceptance = Acceptance(prior.start, prior)
            record = DrafterRecord(acceptance, proposal.certain, prior.poor)
            self.records[proposal.drafter] = record
        return record

    def state(self, drafter: str) -> tuple[GateState, Reason | None]:
        """Return the state of a drafter in this request, and why unless it is on."""
        record = self.records.get(drafter)
        if record is not None and (self.draft_length.fixed is not None or record.certain):
            return GateState.ON, None
        if record is None or record.speedup is None:
            return GateState.OBSERVING, Reason("spec.observing")
        if record.speedup < CONFIG.min_speedup:
            speedup = round(record.speedup, 2)
            return GateState.OFF, Reason("spec.off.does_not_pay", {"speedup": speedup})
        return GateState.ON, None

    def min_length(self, proposal: Proposal) -> int:
        """Return the shortest draft to make; of contradictory bounds the upper one holds."""
        bounds = proposal.clause.draft_length
        longest = min(self.draft_length.max, bounds.max or MAX_DRAFT_LENGTH)
        return min(max(1, self.draft_length.min, bounds.min), longest)

    def _max_length(self, proposal: Proposal, pending: int) -> int:
        """Return the longest draft to forecast: never far beyond the widths that were measured."""
        known = max(CONFIG.first_length, 2 * self.cost_model.target.widest - pending)
        if not self.record_of(proposal).used:
            known = min(known, self.draft_length.initial)
        longest = max(known, self.min_length(proposal))
        return min(proposal.max_length, self.draft_length.max, longest)

    def evaluates(self, proposal: Proposal) -> bool:
        """Return whether to forecast a proposal now: evaluation takes time too."""
        skips, index = self.record_of(proposal).skips, bin_of(proposal.match, 0)
        skips[index] = skips.get(index, 0) - 1
        return skips[index] < 0

    def add_forecast(self, proposal: Proposal, speedup: float) -> None:
        """Record a forecast, and for how long it is not worth another one."""
        record, skipped = self.record_of(proposal), 0
        if record.speedup is None:
            record.speedup = speedup
        record.speedup = 0.9 * record.speedup + 0.1 * speedup
        if not proposal.free and record.speedup < CONFIG.min_speedup:
            skipped = CONFIG.skipped_evaluations
        elif proposal.free and speedup < CONFIG.hopeless_speedup:
            skipped = CONFIG.skipped_evaluations // 2
        record.skips[bin_of(proposal.match, 0)] = skipped

    def _explore(self, proposals: Seq[Proposal], context: int) -> Choice:
        """Return the probe of an idle draft model in place of a plain step, or None for the step.

        It drafts as far as came closest to paying, and lasts while the budget allows it.
        """
        plain = self.cost_model.plain_pass(1, context)
        for proposal in proposals:
            record = self.record_of(proposal)
            due = record.probing or record.idle_steps > CONFIG.skipped_evaluations
            if proposal.free or not due:
                continue
            k = record.best_length
            price = self.cost_model.verify(1 + k, context) - plain
            price += k * self.cost_model.draft_pass(proposal, context)
            price += self.cost_model.catch_up(proposal.drafter, proposal.lag, context)
            affordable = self._budget.may_spend(price, plain, in_advance=not record.poor)
            record.probing = affordable and self._could_pay(proposal, context)
            if record.probing:
                record.skips[0] = 0
                return proposal, k
        return None

    def _steps_to_skip(self, proposals: Seq[Proposal]) -> int:
        """Return for how many plain steps no draft model need be evaluated."""
        skips = [self.record_of(option).skips.get(0, 0) for option in proposals if not option.free]
        return max(0, min(skips, default=CONFIG.skipped_evaluations))

    def _could_pay(self, proposal: Proposal, context: int) -> bool:
        """Return whether a draft would pay if all its tokens were accepted."""
        longest = min(proposal.max_length, self.draft_length.max)
        draft_s = self.cost_model.draft_pass(proposal, context)
        certain = RowForecast(1, range(1, longest + 2), [k * draft_s for k in range(longest + 1)])
        widths = [width for width in CONFIG.widths if width <= 1 + longest]
        plain = self.cost_model.plain_pass(1, context)
        verify = self.cost_model.verify
        return decide([certain], widths, lambda w: verify(w, context), plain).pays
