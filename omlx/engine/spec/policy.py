"""How far to draft, and with whom: committed tokens per second, nothing else.

Of all candidates (drafter, k), and of drafting nothing, the policy takes the one that maximises

    E[tokens(k)] - g * ( verify(P + k) + draft(k, lag) + E[ verify(P') - verify(1) ] )

with P the pending tokens, g the rate that the row makes now, and P' what stays pending after a rejection where caches
cannot step back (the debt). Acceptance alone ranks nothing: a drafter right nine times in ten loses where rows are
dear. A wall-clock gate checks the forecast against plain decoding. Pure Python.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from omlx.engine.spec.acceptance import MATCH_CHANCE, Acceptance, draft_slots, match_slots
from omlx.engine.spec.costs import PassCosts

LENGTHS: Final = (1, 2, 3, 4, 5, 7, 9, 11, 15, 19, 23, 31, 47, 63)
EQUAL: Final = 0.02
PAYS: Final = 1.05
FIRST_WINDOW: Final = 4
FIRST_PROBE: Final = 32
LAST_PROBE: Final = 256
PROBE_ROUNDS: Final = 3
GATE_ROUNDS: Final = 8
RATE_WEIGHT: Final = 0.08


@dataclass(frozen=True, slots=True)
class Offer:
    """A drafter's word: it could draft up to `longest` tokens. `match` is 0 for a draft model; `lag` counts the tokens
    that a draft model must read first."""

    drafter: str
    longest: int
    match: int = 0
    lag: int = 0

    def slots(self, k: int) -> list[int]:
        return match_slots(self.match, k) if self.match else draft_slots(k)


@dataclass(frozen=True, slots=True)
class Window:
    """Bounds of a drafted window, in tokens."""

    initial: int = FIRST_WINDOW
    shortest: int = 1
    longest: int = 64

    @property
    def fixed(self) -> bool:
        return self.shortest == self.longest


@dataclass(slots=True)
class Costs:
    """The target's passes and each draft model's, shared by all rows of a model. A lookup costs nothing here."""

    target: PassCosts = field(default_factory=PassCosts)
    drafts: dict[str, PassCosts] = field(default_factory=dict)
    draft_share: float = 0.2
    """A draft pass in target passes while none is measured: the ratio of the weights' bytes."""

    def draft(self, name: str, k: int, lag: int, context: int) -> float:
        """Seconds that a draft model needs for k tokens after reading `lag`."""
        costs = self.drafts.get(name)
        first = costs.seconds(max(1, lag), context) if costs else None
        one = costs.seconds(1, context) if costs else None
        if first is None or one is None:
            one = self.draft_share * (self.target.plain(context) or 0.0)
            first = one * (1 + 0.05 * max(0, lag - 1))
        return first + (k - 1) * one


@dataclass(slots=True)
class Record:
    """One drafter in one request: its acceptance, how far it may go yet, and what the clock said."""

    acceptance: Acceptance
    cap: int
    interval: int = FIRST_PROBE
    idle: int = 0
    probing: int = 0
    closed: bool = False
    rounds: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=GATE_ROUNDS))

    def speedup(self, plain: float) -> float | None:
        """Tokens per plain step's time over the last rounds, or None before there are enough."""
        if len(self.rounds) < GATE_ROUNDS // 2:
            return None
        return sum(n for n, _ in self.rounds) * plain / sum(seconds for _, seconds in self.rounds)


class RowPolicy:
    """Decides for one request. `recurrent` says that a rejection leaves accepted tokens pending."""

    def __init__(
        self, costs: Costs, priors: dict[str, Acceptance], window: Window | None = None, *, recurrent: bool = False
    ) -> None:
        self.costs = costs
        self.window = window or Window()
        self.records: dict[str, Record] = {}
        self._priors = priors
        self._recurrent = recurrent
        self._rate: float | None = None

    def choose(self, offers: Sequence[Offer], pending: int, context: int) -> tuple[Offer, int] | None:
        """The offer to take and how many tokens of it, or None to decode plainly. Counts a decision for each offer."""
        plain = self.costs.target.plain(context)
        if self.window.fixed:
            return next(((o, min(o.longest, self.window.longest)) for o in offers if o.longest > 0), None)
        if plain is None:
            return None
        if (probe := self._probe(offers)) is not None:
            return probe
        rate = max(self._rate or 0.0, 1.0 / plain)
        nothing = plain if pending == 1 else self._verify(pending, context)
        best, best_gain = None, 1.0 - rate * nothing
        for offer in offers:
            record = self.record(offer)
            if record.closed:
                continue
            for k in self._lengths(offer, record):
                tokens, cost = self._forecast(offer, record, k, pending, context)
                if tokens * nothing < PAYS * cost:
                    continue
                gain = tokens - rate * cost
                if gain > best_gain + EQUAL * (best is not None):
                    best, best_gain = (offer, k), gain
        for offer in offers:
            record = self.record(offer)
            if best is None or best[0].drafter != offer.drafter:
                record.idle += 1
            else:
                record.idle = 0
        return best

    def verified(self, offer: Offer, k: int, accepted: int) -> None:
        """A draft of k tokens was verified. Moves the cap: full windows double it, early misses halve it."""
        record = self.record(offer)
        record.acceptance.learn(offer.slots(k), accepted)
        if accepted == k and k >= min(record.cap, offer.longest):
            record.cap = min(2 * record.cap, self.window.longest)

    def shadowed(self, offer: Offer, k: int, accepted: int) -> None:
        """A free draft was compared with what came anyway: evidence without cost."""
        self.record(offer).acceptance.learn(offer.slots(k), accepted)

    def timed(self, offer: Offer | None, tokens: int, seconds: float, context: int) -> None:
        """A round (or, with no offer, a plain step) brought `tokens` in `seconds`."""
        rate = tokens / seconds
        self._rate = rate if self._rate is None else (1 - RATE_WEIGHT) * self._rate + RATE_WEIGHT * rate
        if offer is None or self.window.fixed:
            return
        record = self.record(offer)
        record.rounds.append((tokens, seconds))
        self._judge(record, context)

    def record(self, offer: Offer) -> Record:
        found = self.records.get(offer.drafter)
        if found is None:
            start = MATCH_CHANCE if offer.match else ()
            prior = self._priors.setdefault(offer.drafter, Acceptance(start=start))
            cap = max(self.window.shortest, min(self.window.initial, FIRST_WINDOW))
            found = self.records[offer.drafter] = Record(Acceptance(prior), cap)
        return found

    def speedup(self, drafter: str, context: int) -> float | None:
        plain = self.costs.target.plain(context)
        record = self.records.get(drafter)
        return record.speedup(plain) if record and plain else None

    def _judge(self, record: Record, context: int) -> None:
        plain = self.costs.target.plain(context)
        speedup = record.speedup(plain) if plain else None
        if speedup is None:
            return
        if speedup < PAYS:
            record.closed, record.idle, record.probing = True, 0, 0
            record.interval = min(2 * record.interval, LAST_PROBE)
            record.rounds.clear()
        else:
            record.closed, record.interval = False, FIRST_PROBE

    def _probe(self, offers: Sequence[Offer]) -> tuple[Offer, int] | None:
        """A few short rounds with a drafter that has been silent for its interval, to see whether it pays by now."""
        for offer in offers:
            record = self.record(offer)
            if offer.longest < 1 or (offer.match and not record.closed):
                continue
            if record.probing == 0 and record.idle >= record.interval:
                # Open again: from here the forecast, refreshed by the probe, decides, and the clock judges anew.
                record.probing, record.idle, record.closed = PROBE_ROUNDS, 0, False
                record.interval = min(2 * record.interval, LAST_PROBE)
                record.rounds.clear()
            if record.probing > 0:
                record.probing -= 1
                return offer, min(2, offer.longest)
        return None

    def _lengths(self, offer: Offer, record: Record) -> list[int]:
        longest = min(offer.longest, record.cap, self.window.longest)
        lengths = [k for k in LENGTHS if self.window.shortest <= k < longest]
        return [*lengths, longest] if longest >= self.window.shortest else lengths

    def _forecast(self, offer: Offer, record: Record, k: int, pending: int, context: int) -> tuple[float, float]:
        """Expected tokens of a round, and its seconds, the debt of a rejection included."""
        tokens, reach, debt = 1.0, 1.0, 0.0
        one = self._verify(1, context)
        for i, slot in enumerate(offer.slots(k)):
            p = record.acceptance.chance(slot)
            if self._recurrent:
                debt += reach * (1 - p) * max(0.0, self._verify(pending + i + 1, context) - one)
            reach *= p
            tokens += reach
        seconds = self._verify(pending + k, context) + debt
        if not offer.match:
            seconds += self.costs.draft(offer.drafter, k, offer.lag, context)
        return tokens, seconds

    def _verify(self, width: int, context: int) -> float:
        return self.costs.target.seconds(width, context) or 0.0
