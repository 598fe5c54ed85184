"""What the policy knows about one drafter in one request."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from omlx.engine.speculation.acceptance import MATCH_BINS, Acceptance, bin_of
from omlx.engine.speculation.cost_model import SHORT_LAG
from omlx.engine.speculation.proposal import Proposal
from omlx.errors import Reason

MIN_SPEEDUP: Final = 1.05
"""Forecast speed-up from which on a drafter is used: the margin covers errors of the estimates."""

EVALUATE_EVERY: Final = 16
"""Steps. A draft model that does not pay is evaluated in every sixteenth: evaluation costs time."""

HOPELESS_SPEEDUP: Final = 0.9
"""Forecast speed-up below which the next matches of a lookup's bin are not evaluated."""

SKIPPED_MATCHES: Final = 7
"""Matches that are not evaluated after such a forecast."""

FIRST_BACKOFF: Final = 32
"""Steps without a draft before the first probe of an idle drafter. Each probe doubles them."""

MAX_BACKOFF: Final = 256
"""Upper bound of the steps between two probes."""

PROBE_CREDIT: Final = 4
"""Credit of a probe that begins. A round with an accepted token adds 1, one without takes 2. The
probe ends at 0, not at one miss: good drafts miss too, and the catch-up was paid for."""

MAX_PROBE_CREDIT: Final = 9
"""Credit at which a probe ends because its drafter was often right."""

CATCH_UP_ROUNDS: Final = 8.0
"""Rounds that a draft model is expected to serve per catch-up, until it has served some."""

MIN_TOKENS_PER_ROUND: Final = 2
"""Lower bound of the tokens per round of a draft model for which reading a prompt pays."""

SHADOW_HITS: Final = 1
"""Tokens that a lookup must have predicted without being used before it is used."""


class GateState(StrEnum):
    OBSERVING = "observing"
    ON = "on"
    OFF = "off"


@dataclass(slots=True)
class DrafterRecord:
    """Evidence and backoff of one drafter.

    `observing` lookups are compared with the output and not used. `idle_steps` counts decisions
    since the last draft; at `backoff` of them a probe begins, with `probe_credit` above 0 while it
    lasts. `rounds` counts rounds since the last catch-up. `skip_matches` counts, by bin, matches
    that are not evaluated. `speedup` is a moving average of forecasts, None before the first.
    """

    acceptance: Acceptance
    observing: bool
    certain: bool = False
    backoff: int = FIRST_BACKOFF
    shadow_hits: int = 0
    used: bool = False
    idle_steps: int = 0
    probe_credit: int = 0
    rounds: int = 0
    rounds_per_catch_up: float = CATCH_UP_ROUNDS
    speedup: float | None = None
    skip_matches: dict[int, int] = field(default_factory=dict)

    @property
    def may_pay(self) -> bool:
        """Whether drafting pays, or nothing is known yet."""
        return self.speedup is None or self.speedup >= MIN_SPEEDUP

    @property
    def skip_steps(self) -> int:
        """For how many decisions a draft model that does not pay need not be evaluated."""
        if self.probe_credit or self.may_pay:
            return 0
        return max(0, min(self.backoff - self.idle_steps - 1, -self.idle_steps % EVALUATE_EVERY))

    @property
    def gate(self) -> tuple[GateState, Reason | None]:
        """The state of the drafter, and why unless it is on."""
        if self.certain:
            return GateState.ON, None
        if self.observing or self.speedup is None:
            return GateState.OBSERVING, Reason("spec.observing")
        if self.speedup < MIN_SPEEDUP:
            speedup = round(self.speedup, 2)
            return GateState.OFF, Reason("spec.off.does_not_pay", {"speedup": speedup})
        return GateState.ON, None

    def screen(self, proposal: Proposal) -> bool:
        """Return whether to forecast a proposal now.

        Counts down `skip_matches`, and ends `observing` where the match is long enough.
        """
        # A match of 4 tokens means that the 3-gram before it already predicted one token.
        self.observing = self.observing and proposal.match < MATCH_BINS[0] + SHADOW_HITS
        if not proposal.free:
            return self.may_pay or self.idle_steps % EVALUATE_EVERY == 0
        index = bin_of(proposal.match, 0)
        self.skip_matches[index] = self.skip_matches.get(index, 0) - 1
        return not self.observing and self.skip_matches[index] < 0

    def add_forecast(self, proposal: Proposal, speedup: float) -> None:
        if speedup < HOPELESS_SPEEDUP:
            self.skip_matches[bin_of(proposal.match, 0)] = SKIPPED_MATCHES
        if self.speedup is not None:
            speedup = 0.9 * self.speedup + 0.1 * speedup
        self.speedup = speedup

    def add_round(self, proposal: Proposal, k: int, accepted: int) -> None:
        """Count a verified draft of k tokens."""
        if self.used and proposal.lag > SHORT_LAG:
            served = (self.rounds_per_catch_up + self.rounds) / 2
            self.rounds, self.rounds_per_catch_up = 0, max(1.0, served)
        self.used, self.idle_steps, self.rounds = True, 0, self.rounds + 1
        self.acceptance.learn(proposal.match, k, accepted)
        if self.probe_credit and proposal.match:
            self.probe_credit = (
                0  # a lookup's hits are known without a probe: only one pass is timed
            )
        elif self.probe_credit and accepted:
            self.probe_credit += 1
        elif self.probe_credit:
            self.probe_credit = max(0, self.probe_credit - 2)

    def add_shadow(self, proposal: Proposal, k: int, accepted: int) -> None:
        """Count a lookup of k tokens that was compared with the output and not used."""
        self.acceptance.learn(proposal.match, k, accepted)
        self.shadow_hits += accepted
        self.observing = self.observing and self.shadow_hits < SHADOW_HITS

    def rounds_to_serve(self, committed: int) -> float:
        """Return over how many rounds to spread a catch-up that would begin now.

        A model that is known to be good is expected to serve for as many tokens as the request has
        `committed` so far, so that a long answer pays for reading a long prompt.
        """
        if self.used or not self.acceptance.proven:
            return self.rounds_per_catch_up
        return max(self.rounds_per_catch_up, committed / MIN_TOKENS_PER_ROUND)
