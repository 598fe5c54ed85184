"""How far to draft, and with whom: committed tokens per second, nothing else.

Of all candidates (drafter, k), and of drafting nothing, the policy takes the one that maximises

    E[ sum of w over the tokens committed ] - ( verify(P + k) + draft(k, lag) + E[ verify(P') - verify(1) ] )

with w the seconds that a token at such a place takes by now, P the pending tokens, and P' what stays pending after a
rejection where caches cannot step back (the debt). Places differ by the length of the match that stands there: which
tokens are easy is a matter of the text, so hard ones are worth more time, and a window does not reach from them into
easy ones that a later window gets for less. Acceptance alone ranks nothing: a drafter right nine times in ten loses
where rows are dear. The clock teaches the costs, whole rounds and not only passes, so the forecast is the gate: below
1.05 times plain decoding a drafter is off. A free drafter is then scored against what comes anyway, any other is tried
again from time to time. Pure Python.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from omlx.draft_length import DEFAULT_DRAFT_LENGTH, MAX_DRAFT_LENGTH, DraftLength
from omlx.engine.sequence import Interval
from omlx.engine.speculation.acceptance import MATCH_CHANCE, MATCH_STEPS, Acceptance, slot
from omlx.engine.speculation.cost_model import OUTLIER, PLAIN, SETTLED, SHORT_LAG, CostModel
from omlx.engine.speculation.proposal import Choice, Proposal
from omlx.engine.speculation.token_latency import Pace
from omlx.errors import Reason

WIDTHS: Final = frozenset((2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64))
"""Passes worth measuring: few enough to know each, close enough to miss no cheap one."""

PAYS: Final = 1.05
FAINT: Final = 0.01
"""The chance below which no more is reckoned with: what lies that deep in a draft brings nothing."""

EQUAL: Final = 0.02
LEAST: Final = 0.5
"""What a window counts for at least, in plain steps: where kernels are tiled, the pass that reads pending tokens alone
may be dearer than one with a draft behind them."""

CHEAPER: Final = 0.95
"""A pass is padded where the wider one takes at most so much of its time."""

FIRST_WINDOW: Final = 4
SECOND_THOUGHT: Final = 16
"""A draft model that does not pay is reckoned with again in every sixteenth step: thinking takes time as well."""

DULL: Final = 0.9
DULL_MATCHES: Final = 8
"""A lookup below that: in every eighth match of a length."""

FIRST_PROBE: Final = 32
LAST_PROBE: Final = 256
LOSS_SHARE: Final = 0.01
LOSS_AHEAD: Final = 500
"""No probe is made if what drafting has lost to plain decoding would then be more than this share of the row's time so
far and of so many steps ahead: what never pays costs an answer of 1,000 tokens some 1.5 %, a longer one less."""

STALE: Final = 0.25
"""What evidence is worth when a probe looks again."""

CATCH_UP_ROUNDS: Final = 8.0
"""Rounds that a draft model, once caught up, is expected to serve; then what it did serve counts."""

TOKENS_A_ROUND: Final = 2
"""What a draft model brings a round at least, where it is worth reading a prompt for."""

REFRESH: Final = 512
REFRESH_BELOW: Final = 1.5
"""Every 512 tokens, where speculation gains less than this, two plain steps measure what plain costs by now."""

FIRST_TRIAL: Final = 4
LAST_TRIAL: Final = 9
"""A probe has this much credit; a miss takes two, a hit brings one. It ends at nothing, or at the latter. A first miss
is not the end: good drafts miss too, and what a probe costs is the reading of what was missed."""

SHADOW_HITS: Final = 1
"""A lookup is silent until it would have been right this often …"""

PROMPT_SHARE: Final = 0.2
"""… or until it would have predicted this share of the prompt's last 2,000 tokens."""


class State(StrEnum):
    OBSERVING = "observing"
    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Forecast:
    """What an offer's windows would bring: `reach[i]` is the chance that i drafted tokens are accepted, `windows` holds
    (k, seconds, rate in plain steps' rates)."""

    offer: Proposal
    reach: list[float]
    windows: list[tuple[int, float, float]]

    @property
    def speedup(self) -> float:
        return max((ratio for _, _, ratio in self.windows), default=0.0)

    def best(self, worth: list[float], margin: float) -> tuple[int, float]:
        """The window that gains most seconds, of those that pay, and its gain; the shorter one within `margin`."""
        best_k, best_gain, value, done = 0, -math.inf, worth[0], 0
        for k, cost, ratio in self.windows:
            value += sum(self.reach[i] * worth[i] for i in range(done + 1, k + 1))
            done = k
            if ratio >= PAYS and value - cost > best_gain + margin:
                best_k, best_gain = k, value - cost
        return best_k, best_gain


@dataclass(slots=True)
class Record:
    """One drafter in one request. `idle` counts decisions since it last drafted, up to the `interval` after which it is
    tried again; `trial` is positive in a probe; `served` counts rounds since it last caught up, `serves` is how many
    that makes by and large. `dull` says how many matches more, by slot, are passed over."""

    acceptance: Acceptance
    observing: bool
    sure: bool = False
    shadow_hits: int = 0
    used: bool = False
    idle: int = 0
    interval: int = FIRST_PROBE
    trial: int = 0
    served: int = 0
    serves: float = CATCH_UP_ROUNDS
    speedup: float | None = None
    dull: dict[int, int] = field(default_factory=dict)

    @property
    def pays(self) -> bool:
        """Whether it does, or nobody knows yet."""
        return self.speedup is None or self.speedup >= PAYS

    @property
    def patience(self) -> int:
        """How many decisions more can do without a draft model that does not pay."""
        rest = min(self.interval - self.idle - 1, -self.idle % SECOND_THOUGHT)
        return 0 if self.trial or self.pays else max(0, rest)


class RowPolicy:
    """Decides for one request. `cost_model` and `priors` belong to the model and outlive it; `recurrent` says that a
    rejection leaves accepted tokens pending, `trims` that one costs nothing, `repeats` is the share of the prompt that
    a lookup would have got right. `calm` counts the decisions to come that need no thought unless a lookup finds
    something.
    """

    def __init__(
        self,
        cost_model: CostModel,
        priors: dict[str, Acceptance],
        draft_length: DraftLength | None = None,
        *,
        recurrent: bool = False,
        trims: bool = False,
        repeats: float = 0.0,
    ) -> None:
        self.cost_model = cost_model
        self.draft_length = draft_length or DEFAULT_DRAFT_LENGTH
        self.calm = 0
        self.records: dict[str, Record] = {}
        self._priors = priors
        self._recurrent = recurrent
        self._trims = trims
        self._repeats = repeats
        self._drafted = 0
        self._elapsed = self._lost = 0.0
        self._answered = 0
        self._pace = Pace()
        self._until_refresh = REFRESH

    def rests(self, offers: Sequence[Proposal]) -> bool:
        """Whether nothing could come of a decision now, which is then made."""
        if not self.calm or any(offer.free for offer in offers):
            return False
        self.calm -= 1
        for offer in offers:
            self.record(offer).idle += 1
        return True

    def choose(self, offers: Sequence[Proposal], pending: int, context: int) -> Choice:
        """What to draft now. Call once for every step at which it does not rest."""
        self.calm = 0
        if self.draft_length.fixed is not None or (offers and offers[0].sure):
            return next(
                ((offer, min(offer.max_length, self.draft_length.max)) for offer in offers), None
            )
        offers = [offer for offer in offers if offer.max_length >= self._shortest(offer)]
        if self.cost_model.target.plain(context) is None:
            return None
        self._pace.match = max((offer.match for offer in offers), default=0)
        forecasts = [
            self._forecast(offer, pending, context) for offer in offers if self._arguable(offer)
        ]
        if not forecasts:
            return self._turn(offers, None, pending, context)
        plain = self._nothing(1, context)
        worth = self._pace.worth(
            plain, max(f.speedup for f in forecasts), max(len(f.reach) for f in forecasts)
        )
        best, best_gain, speedup = None, worth[0] - self._nothing(pending, context), 1.0
        for found in forecasts:
            k, gain = found.best(worth, EQUAL * plain)
            if gain > best_gain:
                best, best_gain, speedup = (found.offer, k), gain, found.speedup
        if best is not None and self._until_refresh < 0 and speedup < REFRESH_BELOW:
            return None  # what plain costs is long unmeasured, and the answer might matter
        return self._turn(offers, best, pending, context)

    def padding(self, width: int, context: int, room: int) -> int:
        """How many tokens to read behind a window because a wider pass, well known, is cheaper: kernels are tiled."""
        if not self._trims or self.draft_length.fixed is not None:
            return 0
        verify, known = self.cost_model.verify, self.cost_model.target.sample_count
        wider = [w for w in WIDTHS if width < w <= width + room and known(w, context) >= SETTLED]
        best = min(wider, key=lambda w: verify(w, context), default=width)
        return best - width if verify(best, context) < CHEAPER * verify(width, context) else 0

    def drafting(self, offer: Proposal, k: int, context: int, *, amortised: bool = False) -> float:
        """Seconds that an offer takes for k tokens. A catch-up is an investment: `amortised`, one round's part. That of
        a model known to be good is made once the answer is so long that, going on for as long again, it pays."""
        if offer.free:
            return 0.0
        one = self.cost_model.draft(offer.drafter, 1, context)
        late = (
            self.cost_model.draft(offer.drafter, offer.lag, context) - one
            if offer.lag > SHORT_LAG
            else 0.0
        )
        if amortised:
            record = self.record(offer)
            first = not record.used and record.acceptance.proven
            late /= max(record.serves, self._answered / TOKENS_A_ROUND) if first else record.serves
        return late + k * one

    def verified(self, offer: Proposal, k: int, accepted: int) -> None:
        """A draft of k tokens was verified."""
        record = self.record(offer)
        if record.used and offer.lag > SHORT_LAG:
            record.served, record.serves = 0, max(1.0, (record.serves + record.served) / 2)
        record.used, record.idle, record.served = True, 0, record.served + 1
        record.acceptance.learn(offer.match, k, accepted)
        if record.trial:
            # What a lookup would have got right is known without: its probe only times a pass.
            record.trial = 0 if offer.match else max(0, record.trial + (1 if accepted else -2))
        self._drafted = k

    def shadowed(self, offer: Proposal, k: int, accepted: int) -> None:
        """A free draft was compared with what came anyway: evidence without cost."""
        record = self.record(offer)
        record.acceptance.learn(offer.match, k, accepted)
        record.shadow_hits += accepted
        record.observing = record.observing and record.shadow_hits < SHADOW_HITS

    def timed(self, offer: Proposal | None, tokens: int, interval: Interval, context: int) -> None:
        """A round (or, with no offer, a plain step) brought `tokens`, `interval` after the commit before it. What a
        draft model is known to take is subtracted, the rest is the target's pass, with all that surrounds it."""
        seconds, width = interval.seconds, interval.width
        drafting = 0.0 if offer is None else self.drafting(offer, self._drafted, context)
        self._answered += tokens
        self._until_refresh = REFRESH if width == PLAIN else self._until_refresh - tokens
        if offer is not None:
            took = min(seconds, OUTLIER * (drafting + self.cost_model.verify(width, context)))
            self._lost = max(0.0, self._lost + took - tokens * self._nothing(1, context))
        caught_up = offer is None or offer.lag <= SHORT_LAG
        if not caught_up:
            self.cost_model.exploration_budget_s = max(
                0.0, self.cost_model.exploration_budget_s - drafting
            )
        spent = seconds - drafting
        if not caught_up or spent <= 0.0 or not self.cost_model.target.learn(width, context, spent):
            return
        self._elapsed += seconds
        self.cost_model.exploration_budget_s += LOSS_SHARE * seconds
        if offer is None or not offer.sure:  # which says nothing of how hard the text is
            self._pace.learn(tokens, seconds)

    def record(self, offer: Proposal) -> Record:
        found = self.records.get(offer.drafter)
        if found is None:
            prior = self._priors.setdefault(
                offer.drafter, Acceptance(MATCH_CHANCE) if offer.match else Acceptance()
            )
            silent = offer.match > 0 and self._repeats < PROMPT_SHARE
            interval = LAST_PROBE if prior.poor and not offer.match else FIRST_PROBE
            acceptance = Acceptance(prior.start, prior)
            found = self.records[offer.drafter] = Record(
                acceptance, silent, offer.sure, interval=interval
            )
        return found

    def state(self, drafter: str) -> tuple[State, Reason | None]:
        """What a drafter is doing in this row, and why unless it drafts."""
        record = self.records.get(drafter)
        if record is not None and (self.draft_length.fixed is not None or record.sure):
            return State.ON, None
        if record is None or record.observing or record.speedup is None:
            return State.OBSERVING, Reason("spec.observing")
        if record.speedup < PAYS:
            return State.OFF, Reason("spec.off.does_not_pay", {"speedup": round(record.speedup, 2)})
        return State.ON, None

    def _arguable(self, offer: Proposal) -> bool:
        """Whether to think about an offer now: not of a silent one, and only now and then of one that did not pay."""
        record = self.record(offer)
        # A match so long is as many hits: one token fewer would have predicted the last one.
        record.observing = record.observing and offer.match < MATCH_STEPS[0] + SHADOW_HITS
        if not offer.free:
            return record.pays or record.idle % SECOND_THOUGHT == 0
        place = slot(offer.match, 0)
        record.dull[place] = record.dull.get(place, 0) - 1
        return not record.observing and record.dull[place] < 0

    def _forecast(self, offer: Proposal, pending: int, context: int) -> Forecast:
        """What the windows of an offer bring, in tokens and seconds. What pending tokens cost is owed anyway."""
        record, verify, one = (
            self.record(offer),
            self.cost_model.verify,
            self.cost_model.verify(1, context),
        )
        plain = self._nothing(1, context)
        owed = self._nothing(pending, context) - plain
        chances = record.acceptance.chances()
        pass_of_draft = self.drafting(offer, 2, context) - self.drafting(offer, 1, context)
        before = self.drafting(offer, 0, context, amortised=True)
        shortest, longest = self._shortest(offer), self._longest(offer, record, pending)
        tokens, debt = 1.0, 0.0
        found = Forecast(offer, [1.0], [])
        for k in range(1, longest + 1):
            before_it, chance = found.reach[-1], chances[slot(offer.match, k - 1)]
            if self._recurrent:
                debt += before_it * (1.0 - chance) * max(0.0, verify(pending + k, context) - one)
            found.reach.append(before_it * chance)
            tokens += before_it * chance
            if k >= shortest and (pending + k in WIDTHS or k == longest):
                width = pending + k
                if k == longest:  # shorter windows have wider ones to choose from
                    width += self.padding(width, context, MAX_DRAFT_LENGTH)
                cost = verify(width, context) + before + k * pass_of_draft + debt
                found.windows.append((k, cost, tokens * plain / max(cost - owed, LEAST * plain)))
                if before_it < FAINT:
                    break
        speedup = found.speedup
        if speedup < DULL:
            record.dull[slot(offer.match, 0)] = DULL_MATCHES - 1
        record.speedup = speedup if record.speedup is None else 0.9 * record.speedup + 0.1 * speedup
        return found

    def _longest(self, offer: Proposal, record: Record, pending: int) -> int:
        """The longest draft worth a thought: short at first, and never far beyond the widths that were measured."""
        known = max(FIRST_WINDOW, 2 * self.cost_model.target.widest - pending)
        thought = known if record.used else min(known, self.draft_length.initial, FIRST_WINDOW)
        return min(offer.max_length, self.draft_length.max, max(thought, self._shortest(offer)))

    def _shortest(self, offer: Proposal) -> int:
        """The least that is drafted at a time, if anything is: more than is allowed is not asked for."""
        least = max(1, self.draft_length.min, offer.step.shortest_draft or 1)
        return min(least, self.draft_length.max, offer.step.longest_draft or MAX_DRAFT_LENGTH)

    def _nothing(self, pending: int, context: int) -> float:
        """Seconds of drafting nothing."""
        return self.cost_model.verify(PLAIN if pending == 1 else pending, context)

    def _turn(self, offers: Sequence[Proposal], best: Choice, pending: int, context: int) -> Choice:
        """The best offer; or, in place of a plain step, a short look at one that has been idle for its interval."""
        for offer in offers:
            record = self.record(offer)
            if best is not None and best[0] is offer:
                record.interval = FIRST_PROBE
                continue
            record.idle += 1
            # Behind a rejection that left tokens pending, a look that fails would have them read a third time.
            if best is not None or record.observing or (pending > 1 and not offer.free):
                continue
            if record.idle >= record.interval:
                if wait := self._wait(offer, context):
                    record.interval = record.idle + wait
                else:
                    record.trial = FIRST_TRIAL
                    record.interval = min(2 * record.interval, LAST_PROBE)
                    record.acceptance.fade(STALE)
            if 0 < record.trial < LAST_TRIAL:
                best = offer, self._shortest(offer)
            record.trial %= LAST_TRIAL
        if best is None and pending == 1:
            self.calm = min(
                (self.record(offer).patience for offer in offers if not offer.free),
                default=SECOND_THOUGHT,
            )
        return best

    def _wait(self, offer: Proposal, context: int) -> int:
        """For how many decisions a probe has to wait: until its price is fair, or because it could change nothing (what
        is drafted free of charge is scored anyway)."""
        plain, k, verify = self._nothing(1, context), self._shortest(offer), self.cost_model.verify
        price = verify(1 + k, context) - plain + self.drafting(offer, k, context)
        saved = (
            0.0 if self.record(offer).acceptance.proven else self.cost_model.exploration_budget_s
        )
        missing = self._lost + price - max(saved, LOSS_SHARE * (self._elapsed + LOSS_AHEAD * plain))
        if missing > 0.0:
            return 1 + int(missing / (LOSS_SHARE * plain))
        if self.cost_model.target.sample_count(2, context) < SETTLED:
            return 0
        one = self.drafting(Proposal(offer.drafter, 1), 1, context)
        longest = min(offer.max_length, self.draft_length.max)
        windows = [n for n in range(k, longest + 1) if 1 + n in WIDTHS or n == longest]
        pays = any((1 + n) * plain >= PAYS * (verify(1 + n, context) + n * one) for n in windows)
        return SECOND_THOUGHT if offer.free or not pays else 0
