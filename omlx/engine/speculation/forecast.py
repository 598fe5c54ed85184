"""Forecast of a proposal: the tokens that drafts of each length bring, and their seconds.

A round with P pending and k draft tokens takes

    verify(P + k) + catch-up / rounds it serves + k · draft pass + rejection cost

and saves Σ reach[i] · usual seconds of token i, less that. The rejection cost is that of tokens
that stay pending after a rejection, in models with recurrent layers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

from omlx.draft_length import MAX_DRAFT_LENGTH, DraftLength
from omlx.engine.speculation.acceptance import bin_of
from omlx.engine.speculation.cost_model import SHORT_LAG, WIDTHS, CostModel
from omlx.engine.speculation.drafter_record import MIN_SPEEDUP, DrafterRecord
from omlx.engine.speculation.proposal import Proposal

MIN_REACH: Final = 0.01
"""Ignore draft positions whose cumulative acceptance probability is lower."""

MIN_ROUND_COST: Final = 0.5
"""Lower bound of a round's cost in plain steps. Kernels are tiled, so the pass over pending tokens
alone may cost more than one with a draft behind them."""

FIRST_LENGTH: Final = 4
"""Tokens. Upper bound of a drafter's first draft, and of all while no wide pass is measured."""


class DraftOption(NamedTuple):
    """A draft of `length` tokens: the round's `seconds`, and its speed-up over plain decoding."""

    length: int
    seconds: float
    speedup: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """`reach[i]` is the probability of i accepted draft tokens; `options` ascend by length."""

    proposal: Proposal
    reach: list[float]
    options: list[DraftOption]

    @property
    def speedup(self) -> float:
        return max((speedup for _, _, speedup in self.options), default=0.0)

    def best(self, seconds_per_token: list[float], margin: float) -> tuple[int, float]:
        """Return the draft length that saves the most seconds, of those that pay, and its saving.

        The shorter of two lengths within `margin` seconds. 0 and -inf if none pays.
        """
        best_k, best_gain, value, counted = 0, -math.inf, seconds_per_token[0], 0
        for k, cost, speedup in self.options:
            value += sum(self.reach[i] * seconds_per_token[i] for i in range(counted + 1, k + 1))
            counted = k
            if speedup >= MIN_SPEEDUP and value - cost > best_gain + margin:
                best_k, best_gain = k, value - cost
        return best_k, best_gain


@dataclass(slots=True)
class Forecaster:
    """Estimates for one request. `recurrent` and `trims` as in `Speculator`."""

    cost_model: CostModel
    draft_length: DraftLength
    recurrent: bool = False
    trims: bool = False

    def forecast(
        self, proposal: Proposal, record: DrafterRecord, pending: int, context: int, committed: int
    ) -> Forecast:
        """Forecast drafts after `pending` tokens; `committed` counts the request's output."""
        verify, single = self.cost_model.verify, self.cost_model.verify(1, context)
        plain = self.cost_model.plain_pass(1, context)
        backlog_cost = (
            self.cost_model.plain_pass(pending, context) - plain
        )  # of reading more than one pending token, with or without a draft
        rates = record.acceptance.rates()
        catch_up = self._catch_up(proposal, context) / record.rounds_to_serve(committed)
        draft_pass = self._draft_pass(proposal, context)
        shortest = self.min_length(proposal)
        longest = self.max_length(proposal, record, pending)
        expected, rejection_cost = 1.0, 0.0
        forecast = Forecast(proposal, [1.0], [])
        for k in range(1, longest + 1):
            reached, rate = forecast.reach[-1], rates[bin_of(proposal.match, k - 1)]
            if self.recurrent:
                wider = verify(pending + k, context) - single
                rejection_cost += reached * (1.0 - rate) * max(0.0, wider)
            forecast.reach.append(reached * rate)
            expected += reached * rate
            if k >= shortest and (pending + k in WIDTHS or k == longest):
                width = pending + k
                if k == longest:  # for shorter drafts, longer ones are the wider passes
                    width += self.padding(width, context, MAX_DRAFT_LENGTH)
                cost = verify(width, context) + catch_up + k * draft_pass + rejection_cost
                speedup = expected * plain / max(cost - backlog_cost, MIN_ROUND_COST * plain)
                forecast.options.append(DraftOption(k, cost, speedup))
                if reached < MIN_REACH:
                    break
        return forecast

    def could_pay(self, proposal: Proposal, context: int) -> bool:
        """Return whether a draft would pay if all its tokens were accepted."""
        plain, verify = self.cost_model.plain_pass(1, context), self.cost_model.verify
        draft_pass = self._draft_pass(proposal, context)
        longest = min(proposal.max_length, self.draft_length.max)
        for k in range(self.min_length(proposal), longest + 1):
            if 1 + k in WIDTHS or k == longest:
                cost = verify(1 + k, context) + k * draft_pass
                if (1 + k) * plain >= MIN_SPEEDUP * cost:
                    return True
        return False

    def draft_seconds(self, proposal: Proposal, k: int, context: int) -> float:
        """Estimate the seconds of drafting k tokens, catch-up included."""
        return self._catch_up(proposal, context) + k * self._draft_pass(proposal, context)

    def padding(self, width: int, context: int, room: int) -> int:
        """Return by how many tokens, up to `room`, to widen a pass. Only where trimming is free."""
        if not self.trims or self.draft_length.fixed is not None:
            return 0
        return self.cost_model.padding(width, context, room)

    def min_length(self, proposal: Proposal) -> int:
        """Return the shortest draft to make; of contradictory bounds the upper one holds."""
        bounds = proposal.clause.draft_length
        shortest, longest = (
            max(1, self.draft_length.min, bounds.min),
            bounds.max or MAX_DRAFT_LENGTH,
        )
        return min(shortest, self.draft_length.max, longest)

    def max_length(self, proposal: Proposal, record: DrafterRecord, pending: int) -> int:
        """Return the longest draft to forecast: never far beyond the widths that were measured."""
        known = max(FIRST_LENGTH, 2 * self.cost_model.target.widest - pending)
        if not record.used:
            known = min(known, self.draft_length.initial, FIRST_LENGTH)
        longest = max(known, self.min_length(proposal))
        return min(proposal.max_length, self.draft_length.max, longest)

    def _draft_pass(self, proposal: Proposal, context: int) -> float:
        return 0.0 if proposal.free else self.cost_model.draft(proposal.drafter, 1, context)

    def _catch_up(self, proposal: Proposal, context: int) -> float:
        """Estimate the seconds of reading what the draft model has missed, beyond a usual pass."""
        if proposal.free or proposal.lag <= SHORT_LAG:
            return 0.0
        reading = self.cost_model.draft(proposal.drafter, proposal.lag, context)
        return reading - self.cost_model.draft(proposal.drafter, 1, context)
