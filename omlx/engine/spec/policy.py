"""How far to draft, and with whom: committed tokens per second, nothing else.

Of all candidates (drafter, k), and of drafting nothing, the policy takes the one that maximises

    E[tokens(k)] - g * ( verify(P + k) + draft(k, lag) + E[ verify(P') - verify(1) ] )

with P the pending tokens, g the rate that the row makes now, and P' what stays pending after a rejection where caches
cannot step back (the debt). Acceptance alone ranks nothing: a drafter right nine times in ten loses where rows are
dear. The clock teaches the costs, whole rounds and not only passes, so the forecast is the gate: below 1.05 times plain
decoding a drafter is off. A free drafter is then scored against what comes anyway, any other is tried again from time
to time. Pure Python.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from omlx.engine.spec.acceptance import MATCH_CHANCE, Acceptance, slot
from omlx.engine.spec.costs import PLAIN, SETTLED, SHORT_LAG, Costs
from omlx.engine.spec.strategy import WindowBounds
from omlx.errors import Reason

WIDTHS: Final = frozenset((2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64))
"""Passes worth measuring: few enough to know each, close enough to miss no cheap one."""

PAYS: Final = 1.05
EQUAL: Final = 0.02
FIRST_WINDOW: Final = 4
FIRST_PROBE: Final = 32
LAST_PROBE: Final = 256
PROBE_SHARE: Final = 0.02
"""A probe may cost this share of the row's time so far, the first 256 steps taken as given."""

STALE: Final = 0.25
"""What evidence is worth when a probe looks again."""

CATCH_UP_ROUNDS: Final = 16
"""Rounds that a draft model, once caught up, is expected to serve."""

RATE_DECAY: Final = 0.94
REFRESH: Final = 512
REFRESH_BELOW: Final = 1.5
"""Every 512 tokens, where speculation gains less than this, two plain steps measure what plain costs by now."""

LAST_TRIAL: Final = 8
"""Lead of hits over misses at which a probe has shown all it can."""

SHADOW_HITS: Final = 3
"""A lookup is silent until it would have been right this often …"""

PROMPT_SHARE: Final = 0.2
"""… or until it would have predicted this share of the prompt's last 2,000 tokens."""


class State(StrEnum):
    OBSERVING = "observing"
    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Offer:
    """A drafter's word: it could draft up to `longest` tokens. `match` is 0 for a draft model; `lag` counts the tokens
    that a draft model must read first."""

    drafter: str
    longest: int
    match: int = 0
    lag: int = 0


@dataclass(frozen=True, slots=True)
class Forecast:
    """The best window of an offer: its gain by the formula above, and its rate in plain steps' rates."""

    k: int
    gain: float
    speedup: float


@dataclass(slots=True)
class Record:
    """One drafter in one request. `idle` counts decisions since it last drafted; `trial` is positive in a probe."""

    acceptance: Acceptance
    observing: bool
    shadow_hits: int = 0
    used: bool = False
    idle: int = 0
    interval: int = FIRST_PROBE
    trial: int = 0
    speedup: float | None = None


class RowPolicy:
    """Decides for one request. `costs` and `priors` belong to the model and outlive it; `recurrent` says that a
    rejection leaves accepted tokens pending; `repeats` is the share of the prompt that a lookup would have predicted."""

    def __init__(
        self,
        costs: Costs,
        priors: dict[str, Acceptance],
        window: WindowBounds | None = None,
        *,
        recurrent: bool = False,
        repeats: float = 0.0,
    ) -> None:
        self.costs = costs
        self.window = window or WindowBounds()
        self.records: dict[str, Record] = {}
        self._priors = priors
        self._recurrent = recurrent
        self._repeats = repeats
        self._pending = 1
        self._drafted = 0
        self._in_flight = False
        self._elapsed = 0.0
        self._recent = (0.0, 0.0)
        self._until_refresh = REFRESH

    def choose(self, offers: Sequence[Offer], pending: int, context: int) -> tuple[Offer, int] | None:
        """The offer to take and how many tokens of it, or None to decode plainly. Call once for every step."""
        self._pending, self._drafted = pending, 0
        if self.window.fixed:
            return next(((offer, min(offer.longest, self.window.longest)) for offer in offers), None)
        offers = [offer for offer in offers if offer.longest >= self.window.shortest]
        if self.costs.target.plain(context) is None:
            return None
        nothing = self._nothing(pending, context)
        tokens, seconds = self._recent
        rate = max(tokens / seconds if seconds else 0.0, 1.0 / self._nothing(1, context))
        best, best_gain, speedup = None, 1.0 - rate * nothing, 1.0
        for offer in offers:
            record = self.record(offer)
            found = self._forecast(offer, record, pending, context, rate)
            record.speedup = found.speedup if record.speedup is None else 0.9 * record.speedup + 0.1 * found.speedup
            if not record.observing and found.gain > best_gain:
                best, best_gain, speedup = (offer, found.k), found.gain, found.speedup
        if best is not None and self._refreshing(speedup):
            return None
        return self._turn(offers, best, context)

    def verified(self, offer: Offer, k: int, accepted: int) -> None:
        """A draft of k tokens was verified."""
        record = self.record(offer)
        record.used, record.idle = True, 0
        record.acceptance.learn(offer.match, k, accepted)
        if record.trial:
            record.trial += 1 if accepted else -1
        self._drafted = k

    def shadowed(self, offer: Offer, k: int, accepted: int) -> None:
        """A free draft was compared with what came anyway: evidence without cost."""
        record = self.record(offer)
        record.acceptance.learn(offer.match, k, accepted)
        record.shadow_hits += accepted
        record.observing = record.observing and record.shadow_hits < SHADOW_HITS

    def timed(self, offer: Offer | None, tokens: int, seconds: float, context: int) -> None:
        """A round (or, with no offer, a plain step) brought `tokens`, `seconds` after the commit before it. What a
        draft model is known to take is subtracted, the rest is the target's pass, with all that surrounds it."""
        width = self._pending + self._drafted
        if offer is None and width == 1 and self._in_flight:
            width = PLAIN
        spent = seconds if offer is None or offer.match else seconds - self._draft(offer, self._drafted, context)
        self._in_flight = offer is None
        self._until_refresh = REFRESH if width == PLAIN else self._until_refresh - tokens
        if spent > 0.0 and not self.costs.target.learn(width, context, spent):
            return
        self._elapsed += seconds
        self._recent = (self._recent[0] * RATE_DECAY + tokens, self._recent[1] * RATE_DECAY + seconds)

    def record(self, offer: Offer) -> Record:
        found = self.records.get(offer.drafter)
        if found is None:
            prior = self._priors.setdefault(offer.drafter, Acceptance(MATCH_CHANCE) if offer.match else Acceptance())
            silent = offer.match > 0 and self._repeats < PROMPT_SHARE
            found = self.records[offer.drafter] = Record(Acceptance(prior.start, prior), silent)
        return found

    def state(self, drafter: str) -> tuple[State, Reason | None]:
        """What a drafter is doing in this row, and why unless it drafts."""
        record = self.records.get(drafter)
        if self.window.fixed and record is not None:
            return State.ON, None
        if record is None or record.observing or record.speedup is None:
            return State.OBSERVING, Reason("spec.observing")
        if record.speedup < PAYS:
            return State.OFF, Reason("spec.off.does_not_pay", {"speedup": round(record.speedup, 2)})
        return State.ON, None

    def _forecast(self, offer: Offer, record: Record, pending: int, context: int, rate: float) -> Forecast:
        """The window of an offer that gains most, of those that pay. What pending tokens cost is owed anyway."""
        verify, one = self.costs.verify, self.costs.verify(1, context)
        plain = self._nothing(1, context)
        owed = self._nothing(pending, context) - plain
        chances = record.acceptance.chances()
        pass_of_draft = self._draft(offer, 2, context) - self._draft(offer, 1, context)
        before = self._draft(offer, 0, context, amortised=True)
        widths, longest = self._bounds(offer, record, pending)
        tokens, reach, debt = 1.0, 1.0, 0.0
        best_k, best_gain, speedup = 0, -math.inf, 0.0
        for k in range(1, longest + 1):
            chance = chances[slot(offer.match, k - 1)]
            if self._recurrent:
                debt += reach * (1.0 - chance) * max(0.0, verify(pending + k, context) - one)
            reach *= chance
            tokens += reach
            if k < self.window.shortest or (pending + k not in widths and k != longest):
                continue
            cost = verify(pending + k, context) + before + k * pass_of_draft + debt
            gain, ratio = tokens - rate * cost, tokens * plain / (cost - owed)
            speedup = max(speedup, ratio)
            if ratio >= PAYS and gain > best_gain + EQUAL:
                best_k, best_gain = k, gain
        return Forecast(best_k, best_gain, speedup)

    def _bounds(self, offer: Offer, record: Record, pending: int) -> tuple[frozenset[int], int]:
        """The widths worth a look and the longest draft: short at first, and never far beyond what was measured."""
        longest = min(offer.longest, self.window.longest, max(FIRST_WINDOW, 2 * self.costs.target.widest - pending))
        return WIDTHS, longest if record.used else min(longest, self.window.initial, FIRST_WINDOW)

    def _nothing(self, pending: int, context: int) -> float:
        """Seconds of drafting nothing."""
        return self.costs.verify(PLAIN if pending == 1 else pending, context)

    def _draft(self, offer: Offer, k: int, context: int, *, amortised: bool = False) -> float:
        """Seconds that an offer takes for k tokens. A catch-up is an investment: `amortised`, one round's part."""
        if offer.match:
            return 0.0
        one = self.costs.draft(offer.drafter, 1, context)
        late = self.costs.draft(offer.drafter, offer.lag, context) - one if offer.lag > SHORT_LAG else 0.0
        return late / (CATCH_UP_ROUNDS if amortised else 1) + k * one

    def _turn(self, offers: Sequence[Offer], best: tuple[Offer, int] | None, context: int) -> tuple[Offer, int] | None:
        """The best offer; or, in place of a plain step, a short look at one that has been idle for its interval."""
        for offer in offers:
            record = self.record(offer)
            if best is not None and best[0] is offer:
                record.interval, record.trial = FIRST_PROBE, 0
                continue
            record.idle += 1
            if best is not None or record.observing:
                continue
            if record.idle >= record.interval and self._worth_a_look(offer, context):
                record.trial = 1
                record.interval = min(2 * record.interval, LAST_PROBE)
                record.acceptance.fade(STALE)
            if 0 < record.trial < LAST_TRIAL:
                best = offer, max(1, self.window.shortest)
            record.trial %= LAST_TRIAL
        return best

    def _worth_a_look(self, offer: Offer, context: int) -> bool:
        """Whether a probe could change anything (what is drafted free of charge is scored anyway), at a fair price."""
        plain = self._nothing(1, context)
        price = self.costs.verify(2, context) - plain + self._draft(offer, 1, context)
        if price > PROBE_SHARE * (self._elapsed + LAST_PROBE * plain):
            return False
        if self.costs.target.known(2, context) < SETTLED:
            return True
        one = self._draft(Offer(offer.drafter, 1), 1, context)
        longest = min(offer.longest, self.window.longest)
        costs = [(k, self.costs.verify(1 + k, context) + k * one) for k in range(1, longest + 1) if 1 + k in WIDTHS]
        return not offer.match and any((1 + k) * plain >= PAYS * cost for k, cost in costs)

    def _refreshing(self, speedup: float) -> bool:
        """Whether to step plainly once more: what plain costs is long unmeasured, and the answer might matter."""
        return self._until_refresh < 0 and speedup < REFRESH_BELOW
