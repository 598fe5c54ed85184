"""Policy: which drafter drafts in the next round, and how many tokens, to maximise throughput.

Of all drafts, and of plain decoding, it takes the one that saves most seconds: the seconds that its
committed tokens usually take, less those of the round. So draft lengths stop before tokens that are
cheaper to draft in the next round. A drafter whose forecast is below 1.05 times plain decoding is
off: a lookup is then compared with the output for free, a draft model is probed within an
exploration budget.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Final

from omlx.draft_length import DEFAULT_DRAFT_LENGTH, DraftLength
from omlx.engine.sequence import Interval
from omlx.engine.speculation.acceptance import MATCH_RATES, Acceptance, bin_of
from omlx.engine.speculation.cost_model import (
    MIN_SAMPLES,
    OUTLIER,
    PLAIN,
    SHORT_LAG,
    CostModel,
)
from omlx.engine.speculation.decide import RowForecast
from omlx.engine.speculation.drafter_record import (
    EVALUATE_EVERY,
    FIRST_BACKOFF,
    MAX_BACKOFF,
    MAX_PROBE_CREDIT,
    PROBE_CREDIT,
    DrafterRecord,
    GateState,
)
from omlx.engine.speculation.exploration import ExplorationBudget
from omlx.engine.speculation.forecast import MIN_REACH, Forecast, Forecaster
from omlx.engine.speculation.proposal import Choice, Proposal
from omlx.engine.speculation.rectangle import Member
from omlx.engine.speculation.token_latency import TokenLatency
from omlx.errors import Reason

TIE_MARGIN: Final = 0.02
"""Plain steps. Of two draft lengths with savings closer than this the shorter one is taken."""

STALE_EVIDENCE: Final = 0.25
"""Share of its acceptance counts that a drafter keeps when a probe begins."""

REFRESH_TOKENS: Final = 512
"""Tokens without a plain step after which two in succession measure plain decoding again: only a
step that overlaps with another plain step is timed as such."""

REFRESH_BELOW: Final = 1.5
"""Speed-up below which plain decoding is measured again: above it, no decision would change."""

PROMPT_SHARE: Final = 0.2
"""A lookup that would have predicted this share of the end of the prompt is used at once."""


class RowPolicy:
    """Decides for one request.

    `cost_model` and `priors` (acceptance by drafter) belong to the model and outlive the request.
    `prompt_hit_rate` is the share of the prompt that a lookup would have predicted. `skip_steps`
    counts the coming decisions that need no evaluation unless a lookup finds something.
    """

    def __init__(
        self,
        cost_model: CostModel,
        priors: dict[str, Acceptance],
        draft_length: DraftLength | None = None,
        *,
        recurrent: bool = False,
        trims: bool = False,
        prompt_hit_rate: float = 0.0,
    ) -> None:
        self.cost_model = cost_model
        self.draft_length = draft_length or DEFAULT_DRAFT_LENGTH
        self.forecaster = Forecaster(cost_model, self.draft_length, recurrent, trims)
        self.skip_steps = 0
        self.records: dict[str, DrafterRecord] = {}
        self._priors = priors
        self._prompt_hit_rate = prompt_hit_rate
        self._budget = ExplorationBudget(cost_model)
        self._latency = TokenLatency()
        self._drafted = 0  # tokens of the draft in flight
        self._committed = 0
        self._until_refresh = REFRESH_TOKENS

    def skip(self, proposals: Seq[Proposal]) -> bool:
        """Return True, and count the decision as made, if no candidate could win it."""
        if not self.skip_steps or any(proposal.free for proposal in proposals):
            return False
        self.skip_steps -= 1
        for proposal in proposals:
            self.record_of(proposal).idle_steps += 1
        return True

    def choose(self, proposals: Seq[Proposal], pending: int, context: int) -> Choice:
        """Return what to draft after `pending` tokens.

        Call it for every step that is not skipped; again once the step in flight is committed.
        """
        self.skip_steps = 0
        fixed = self.draft_length.fixed is not None
        if proposals and (fixed or proposals[0].certain):
            return proposals[0], min(proposals[0].max_length, self.draft_length.max)
        if fixed:
            return None
        shortest = self.forecaster.min_length
        proposals = [option for option in proposals if option.max_length >= shortest(option)]
        if self.cost_model.target.plain(context) is None:
            return None
        self._latency.match = max((proposal.match for proposal in proposals), default=0)
        forecasts = [
            self._forecast(proposal, pending, context)
            for proposal in proposals
            if self.record_of(proposal).screen(proposal)
        ]
        best = self._best(forecasts, pending, context)
        if best is None:
            return self._explore(proposals, None, pending, context)
        forecast, k = best
        if self._until_refresh < 0 and forecast.speedup < REFRESH_BELOW:
            return None  # a plain step, to be measured
        return self._explore(proposals, (forecast.proposal, k), pending, context)

    def member(
        self, proposals: Seq[Proposal], pending: int, context: int, best: Callable[[Member], float]
    ) -> Member:
        """Return what this row brings to a pass that it shares: one of `proposals`, or none.

        `best` gives the speed-up of a draft of a row by itself.
        """
        fixed = self.draft_length.fixed is not None
        if proposals and (fixed or proposals[0].certain):
            longest = min(proposals[0].max_length, self.draft_length.max)
            certain = RowForecast(pending, range(1, longest + 2), [0.0] * (longest + 1))
            return Member(certain, proposals[0], fixed=fixed)
        members: list[Member] = []
        for proposal in () if fixed else proposals:
            shortest = self.forecaster.min_length(proposal)
            if proposal.max_length >= shortest and self.record_of(proposal).screen(proposal):
                forecast = self.row_forecast(proposal, pending, context)
                members.append(Member(forecast, proposal, shortest))
        return max(members, key=best, default=Member(RowForecast(pending)))

    def row_forecast(self, proposal: Proposal, pending: int, context: int) -> RowForecast:
        """Return what drafts of each length bring, and cost in addition to their pass."""
        record = self.record_of(proposal)
        rates = record.acceptance.rates()
        reached, tokens = 1.0, [1.0]
        for k in range(self.forecaster.max_length(proposal, record, pending)):
            reached *= rates[bin_of(proposal.match, k)]
            if reached < MIN_REACH:
                break
            tokens.append(tokens[-1] + reached)
        catch_up = self.forecaster.draft_seconds(proposal, 0, context)
        spread = catch_up * (1.0 - 1.0 / record.rounds_to_serve(self._committed))
        seconds = [0.0]
        for k in range(1, len(tokens)):
            seconds.append(self.forecaster.draft_seconds(proposal, k, context) - spread)
        return RowForecast(pending, tokens, seconds)

    def observe_verification(self, proposal: Proposal, k: int, accepted: int) -> None:
        """Learn from a draft of k tokens that was verified."""
        self.record_of(proposal).add_round(proposal, k, accepted)
        self._drafted = k

    def observe_shadow(self, proposal: Proposal, k: int, accepted: int) -> None:
        """Learn from a lookup of k tokens that was compared with the output and not used."""
        self.record_of(proposal).add_shadow(proposal, k, accepted)

    def observe_time(
        self, proposal: Proposal | None, tokens: int, interval: Interval, context: int
    ) -> None:
        """Learn from a round, or a plain step, that committed `tokens` after `interval`.

        The known time of drafting is subtracted; the remainder is the target's pass with all the
        host's work around it.
        """
        seconds, width = interval.seconds, interval.width
        drafting, caught_up = 0.0, True
        self._committed += tokens
        self._until_refresh -= tokens
        if width == PLAIN:
            self._until_refresh = REFRESH_TOKENS
        if proposal is not None:
            drafting = self.forecaster.draft_seconds(proposal, self._drafted, context)
            limit = OUTLIER * (drafting + self.cost_model.verify(width, context))
            plain = tokens * self.cost_model.plain_pass(1, context)
            self._budget.add_round(min(seconds, limit), plain)
            caught_up = proposal.lag <= SHORT_LAG
        if not caught_up:  # its time is an estimate, which teaches nothing
            self._budget.add_catch_up(drafting)
            return
        pass_seconds = seconds - drafting
        if pass_seconds <= 0.0 or not self.cost_model.target.learn(width, context, pass_seconds):
            return
        self._budget.add_time(seconds)
        if proposal is None or not proposal.certain:  # certain tokens say nothing about the text
            self._latency.learn(tokens, seconds)

    def record_of(self, proposal: Proposal) -> DrafterRecord:
        """Return the drafter's record; a new one begins with the model's history."""
        record = self.records.get(proposal.drafter)
        if record is None:
            new = Acceptance(MATCH_RATES) if proposal.match else Acceptance()
            prior = self._priors.setdefault(proposal.drafter, new)
            observing = proposal.match > 0 and self._prompt_hit_rate < PROMPT_SHARE
            backoff = FIRST_BACKOFF
            if prior.poor and not proposal.match:
                backoff = MAX_BACKOFF
            acceptance = Acceptance(prior.start, prior)
            record = DrafterRecord(acceptance, observing, proposal.certain, backoff)
            self.records[proposal.drafter] = record
        return record

    def state(self, drafter: str) -> tuple[GateState, Reason | None]:
        """Return the state of a drafter in this request, and why unless it is on."""
        record = self.records.get(drafter)
        if record is None:
            return GateState.OBSERVING, Reason("spec.observing")
        if self.draft_length.fixed is not None:
            return GateState.ON, None
        return record.gate

    def _forecast(self, proposal: Proposal, pending: int, context: int) -> Forecast:
        record = self.record_of(proposal)
        forecast = self.forecaster.forecast(proposal, record, pending, context, self._committed)
        record.add_forecast(proposal, forecast.speedup)
        return forecast

    def _best(
        self, forecasts: Seq[Forecast], pending: int, context: int
    ) -> tuple[Forecast, int] | None:
        """Return the forecast and draft length with the largest saving; None for plain decoding."""
        if not forecasts:
            return None
        plain = self.cost_model.plain_pass(1, context)
        speedup = max(forecast.speedup for forecast in forecasts)
        deepest = max(len(forecast.reach) for forecast in forecasts)
        seconds_per_token = self._latency.seconds_per_token(plain, speedup, deepest)
        best, best_gain = None, seconds_per_token[0] - self.cost_model.plain_pass(pending, context)
        for forecast in forecasts:
            k, gain = forecast.best(seconds_per_token, TIE_MARGIN * plain)
            if gain > best_gain:
                best, best_gain = (forecast, k), gain
        return best

    def _explore(
        self, proposals: Seq[Proposal], best: Choice, pending: int, context: int
    ) -> Choice:
        """Return the best candidate, or in place of a plain step the probe of an idle drafter."""
        for proposal in proposals:
            record = self.record_of(proposal)
            if best is not None and best[0] is proposal:
                record.backoff = FIRST_BACKOFF
                continue
            record.idle_steps += 1
            # After a rejection that left tokens pending, a failed probe would read them once more.
            if best is not None or record.observing or (pending > 1 and not proposal.free):
                continue
            if record.idle_steps >= record.backoff:
                self._begin_probe(proposal, record, context)
            if 0 < record.probe_credit < MAX_PROBE_CREDIT:
                best = proposal, self.forecaster.min_length(proposal)
            # A probe ends at the maximum. What rounds that were chosen earned beyond it remains.
            record.probe_credit %= MAX_PROBE_CREDIT
        if best is None and pending == 1:
            models = [self.record_of(proposal) for proposal in proposals if not proposal.free]
            self.skip_steps = min((record.skip_steps for record in models), default=EVALUATE_EVERY)
        return best

    def _begin_probe(self, proposal: Proposal, record: DrafterRecord, context: int) -> None:
        """Begin a probe, or put it off."""
        if delay := self._probe_delay(proposal, record, context):
            record.backoff = record.idle_steps + delay
            return
        record.probe_credit = PROBE_CREDIT
        record.backoff = min(2 * record.backoff, MAX_BACKOFF)
        record.acceptance.fade(STALE_EVIDENCE)

    def _probe_delay(self, proposal: Proposal, record: DrafterRecord, context: int) -> int:
        """Return for how many decisions to put off a probe: too expensive, or of no use."""
        plain, k = self.cost_model.plain_pass(1, context), self.forecaster.min_length(proposal)
        price = self.cost_model.verify(1 + k, context) - plain
        price += self.forecaster.draft_seconds(proposal, k, context)
        delay = self._budget.steps_until(price, plain, proven=record.acceptance.proven)
        if delay or self.cost_model.target.sample_count(2, context) < MIN_SAMPLES:
            return delay
        # A lookup is compared with the output for free. A draft model may be too slow even if every
        # token is accepted.
        if proposal.free or not self.forecaster.could_pay(proposal, context):
            return EVALUATE_EVERY
        return 0
