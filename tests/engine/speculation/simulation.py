"""A simulated machine and simulated texts, to play the policy against every fixed choice in hindsight.

A `Text` is fixed before anyone plays: its tokens, where a lookup (the real index) would match and how much of what it
proposes is right, and how far a draft model would be right from every position. A `Machine` prices passes. Both are
seeded and noise is keyed by position, so the policy and every baseline meet the same luck. No clock, no model.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from itertools import product

from omlx.draft_length import DraftLength
from omlx.engine.sequence import Interval
from omlx.engine.speculation.acceptance import Acceptance
from omlx.engine.speculation.cost_model import PLAIN, CostModel, LatencyTable
from omlx.engine.speculation.drafters.ngram import NgramIndex
from omlx.engine.speculation.policy import RowPolicy
from omlx.engine.speculation.proposal import Proposal

LONGEST = 63
LONGEST_DRAFT = 16
MAX_PENDING = 12
BARRIER_SECONDS = 0.02
"""What a step costs that cannot be launched before the one ahead of it is read, in plain steps."""


# -- Texts ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """`n` tokens of a kind; a draft model is right with chance `draft`, in bursts of that mean if `bursts`."""

    kind: str
    n: int
    draft: float = 0.5
    bursts: bool = False


@dataclass
class Text:
    """`match[i]` and `hits[i]`: the lookup's match after i tokens, and how many tokens it would get right.
    `drafted[i]`: the same for the draft model. Positions count from the start of the output."""

    prompt: int
    size: int
    match: list[int] = field(default_factory=list)
    hits: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    repeats: float = 0.0


def _prose(rng: random.Random, n: int) -> list[int]:
    """Rare words and stock phrases: three tokens often stood before and often went on otherwise."""
    phrases = [[rng.randrange(300) for _ in range(rng.randint(3, 5))] for _ in range(40)]
    found: list[int] = []
    while len(found) < n:
        if rng.random() < 0.12:
            found += phrases[min(int(rng.expovariate(0.1)), 39)]
        else:
            found.append(int(rng.paretovariate(0.6)) % 20000)
    return found[:n]


def _edited(rng: random.Random, source: list[int], n: int, every: int) -> list[int]:
    """The source again, with a token or a few replaced, inserted or left out about `every` so many."""
    found: list[int] = []
    at = rng.randrange(max(1, len(source) // 4))
    while len(found) < n:
        if every and rng.random() < 1 / every:
            found += [rng.randrange(20000, 30000) for _ in range(rng.randint(0, 3))]
            at += rng.randint(0, 3)
        found.append(source[at % len(source)])
        at += 1
    return found[:n]


def _records(rng: random.Random, n: int) -> list[int]:
    """Lines of one shape: nine fixed tokens around three that change."""
    found: list[int] = []
    while len(found) < n:
        for i in range(12):
            found.append(rng.randrange(3000) if i in (3, 4, 9) else 40000 + i)
    return found[:n]


def _false_friends(rng: random.Random, n: int) -> list[int]:
    """Triples that come back and never go on as before: the worst text for a lookup."""
    triples = [[rng.randrange(1000) for _ in range(3)] for _ in range(8)]
    found: list[int] = []
    while len(found) < n:
        found += [*rng.choice(triples), *(rng.randrange(50000, 90000) for _ in range(2))]
    return found[:n]


def _fresh(rng: random.Random, n: int) -> list[int]:
    return [rng.randrange(10**6, 10**8) for _ in range(n)]


def _part(rng: random.Random, part: Part, prompt: list[int]) -> list[int]:
    edits = {"verbatim": 0, "small edit": 60, "edit": 25, "heavy edit": 8}
    if part.kind in edits:
        return _edited(rng, prompt, part.n, edits[part.kind])
    kinds = {"prose": _prose, "records": _records, "false friends": _false_friends, "fresh": _fresh}
    return kinds[part.kind](rng, part.n)


def _draft_runs(rng: random.Random, parts: Sequence[Part], size: int) -> list[int]:
    """How many tokens the draft model would get right from each position; a little less sure the deeper it is."""
    chances: list[float] = []
    for part in parts:
        good = True
        for _ in range(part.n):
            if rng.random() < 0.05:
                good = rng.random() < part.draft
            chances.append((0.95 if good else 0.15) if part.bursts else part.draft)
    luck = [rng.random() for _ in range(size)]
    runs = []
    for start in range(size):
        run = 0
        while (
            run < LONGEST_DRAFT
            and start + run < size
            and luck[start + run] < chances[start + run] * 0.99**run
        ):
            run += 1
        runs.append(run)
    return runs


@lru_cache(maxsize=512)
def text(
    parts: tuple[Part, ...], seed: int, prompt_tokens: int = 300, repeated: float = 0.0
) -> Text:
    """The text of these parts, after a prompt of prose of which the share `repeated` says earlier parts again."""
    rng = random.Random(f"{parts} {seed}")
    first = round(prompt_tokens * (1.0 - repeated))
    prompt = _fresh(rng, first) if parts[0].kind == "fresh" else _prose(rng, first)
    if repeated:
        prompt += _edited(rng, prompt, prompt_tokens - first, 30)
    output = [token for part in parts for token in _part(rng, part, prompt)]
    found = Text(prompt_tokens, len(output), drafted=_draft_runs(rng, parts, len(output)))
    index, right = NgramIndex(), 0
    tokens = prompt + output
    for i in range(len(tokens)):
        match = index.lookup()
        proposed = index.after(match, LONGEST) if match else ()
        hits = next(
            (j for j, token in enumerate(proposed) if tokens[i + j : i + j + 1] != [token]),
            len(proposed),
        )
        if i >= prompt_tokens:
            found.match.append(match.length if match and proposed else 0)
            found.hits.append(hits)
        else:
            right += hits > 0
        index.extend([tokens[i]])
    found.repeats = right / prompt_tokens
    return found


# -- Machines ---------------------------------------------------------------------------------------------------------


def _between(table: dict[int, float]) -> Callable[[int], float]:
    known = sorted(table)

    @cache
    def cost(width: int) -> float:
        if width in table:
            return table[width]
        low = max(w for w in known if w < width)
        high = min((w for w in known if w > width), default=None)
        if high is None:
            low, high = known[-2:]
        return table[low] + (table[high] - table[low]) * (width - low) / (high - low)

    return cost


_SAWTOOTH = {
    1: 1.0,
    2: 1.30,
    4: 1.92,
    8: 2.08,
    12: 3.31,
    15: 2.20,
    16: 1.82,
    17: 2.10,
    32: 2.85,
    64: 5.0,
}
SHAPES: dict[str, Callable[[int], float]] = {
    "flat": _between({1: 1.0, 2: 1.03, 4: 1.08, 8: 1.2, 16: 1.4, 64: 2.5, 512: 12.0}),
    "sawtooth": _between({**_SAWTOOTH, 512: 22.0}),
    "half": lambda width: 0.5 + 0.5 * width,
    "linear": lambda width: float(width),
}
ROW_GROWTH = {"flat": 0.002, "sawtooth": 0.04, "half": 0.0, "linear": 0.0}
"""What a row more costs more after 1,000 tokens of context."""


@dataclass(frozen=True)
class Machine:
    """Seconds are plain steps at an empty context. `draft` is a draft model's pass, 0 for none."""

    shape: str
    draft: float = 0.0
    recurrent: bool = False
    noise: float = 0.03
    calibrated: bool = True
    first_time: float = 1.0
    """What the first pass of a width takes more, while kernels are compiled."""

    def verify(self, width: int, context: int) -> float:
        """A pass over `width` rows."""
        growth = 1.0 + context / 16000
        return (
            SHAPES[self.shape](width) * growth
            + (width - 1) * ROW_GROWTH[self.shape] * context / 1000
        )

    def drafting(self, k: int, lag: int, context: int) -> float:
        return self.draft * (SHAPES[self.shape](max(1, lag)) + (k - 1)) * (1.0 + context / 16000)

    def costs(self, context: int) -> CostModel:
        """What the policy knows at first: nothing, or a table measured while idle, with its noise."""
        costs = CostModel(draft_share=self.draft or 0.2)
        costs.target.learn_chunk(300, context, self.verify(300, context))
        if self.calibrated:
            rng = random.Random(7)
            for width, _ in product((1, 2, 4, 8, 16, 32, 64), range(5)):
                costs.target.learn(
                    width, context, self.verify(width, context) * rng.gauss(1.0, self.noise)
                )
                costs.target.learn(0, context, self.verify(1, context) * rng.gauss(1.0, self.noise))
            if self.draft:
                passes = costs.drafts.setdefault("draft", LatencyTable())
                for width, _ in product((1, 16, 256), range(5)):
                    passes.learn(
                        width,
                        context,
                        self.drafting(1, width, context) * rng.gauss(1.0, self.noise),
                    )
        return costs


# -- Playing ----------------------------------------------------------------------------------------------------------

Choice = tuple[Proposal, int] | None


@dataclass
class Play:
    """What came of it. `log[i]` is (position, drafter, k, accepted) of a round."""

    seconds: float
    log: list[tuple[int, str, int, int]]
    policy: RowPolicy | None = None


class Run:
    """One player on one machine and text."""

    def __init__(self, machine: Machine, played: Text, seed: int = 0, sleep_at: int = -1) -> None:
        self.machine = machine
        self.text = played
        rng = random.Random(seed)
        self._noise = [max(0.7, rng.gauss(1.0, machine.noise)) for _ in range(played.size + 1)]
        self._noise = [value * (1.5 if rng.random() < 0.01 else 1.0) for value in self._noise]
        self._sleep_at = sleep_at

    def offers(self, at: int, held: int) -> list[Proposal]:
        found = []
        if self.text.match[at]:
            found.append(Proposal("ngram", LONGEST, match=self.text.match[at]))
        if self.machine.draft:
            found.append(Proposal("draft", LONGEST_DRAFT, lag=self.text.prompt + at - held))
        return found

    def play(
        self, choose: Callable[[list[Proposal], int, int], Choice], policy: RowPolicy | None = None
    ) -> Play:
        at, held, pending, total = 0, 0, 1, 0.0
        in_flight, drafts, drafting = False, 0, 0.0
        log: list[tuple[int, str, int, int]] = []
        compiled = {1}
        while at < self.text.size:
            context = self.text.prompt + at
            offers = self.offers(at, held) if pending <= MAX_PENDING else []
            chosen = choose(offers, pending, context)
            k = min(chosen[1], self.text.size - at - 1) if chosen else 0
            noise = self._noise[at]
            room = self.text.size - at - 1 - k
            pad = (
                policy.forecaster.padding(pending + k, context, room)
                if policy is not None and k
                else 0
            )
            width = pending + k + pad
            seconds = self.machine.verify(width, context) * noise
            if width not in compiled:
                compiled.add(width)
                seconds *= self.machine.first_time
            if not k:
                seconds += 0.0 if in_flight and pending == 1 else BARRIER_SECONDS
                accepted, offer = 0, None
            else:
                offer = chosen[0] if chosen else None
                assert offer is not None
                accepted = min(k, (self.text.hits if offer.match else self.text.drafted)[at])
                seconds += BARRIER_SECONDS
                if not offer.match:
                    drafts += 1
                    drafting = self.machine.drafting(k, offer.lag, context) * noise
                    seconds += drafting
                    held = context + min(accepted, k - 1)
            if policy is not None:
                self._tell(policy, offers, offer, k, accepted, at)
                if offer and not offer.match and (drafts < 4 or drafts % 16 == 0):
                    policy.cost_model.learn_draft(offer.drafter, k, offer.lag, context, drafting)
                took = 8 * 3600.0 if at == self._sleep_at else seconds
                overlapped = not k and pending == 1 and in_flight
                policy.timed(
                    offer, accepted + 1, Interval(took, PLAIN if overlapped else width), context
                )
            log.append((at, offer.drafter if offer else "", k, accepted))
            total += seconds
            in_flight = offer is None
            pending = pending + accepted + 1 if accepted < k and self.machine.recurrent else 1
            at += accepted + 1
        return Play(total, log, policy)

    def _tell(
        self,
        policy: RowPolicy,
        offers: list[Proposal],
        offer: Proposal | None,
        k: int,
        accepted: int,
        at: int,
    ) -> None:
        if offer is not None:
            policy.verified(offer, k, accepted)
        for free in offers:
            if free.match and free is not offer:
                seen = min(accepted + 1, free.max_length)
                policy.shadowed(free, seen, min(seen, self.text.hits[at]))

    def fixed(self, names: tuple[str, ...], k: int) -> float:
        """Seconds with the first drafter of `names` that offers anything, always `k` tokens."""

        def choose(offers: list[Proposal], pending: int, context: int) -> Choice:
            return next(
                (
                    (offer, min(k, offer.max_length))
                    for offer in offers
                    if k and offer.drafter in names
                ),
                None,
            )

        return self.play(choose).seconds

    def adaptive(
        self,
        window: DraftLength | None = None,
        costs: CostModel | None = None,
        priors: dict[str, Acceptance] | None = None,
    ) -> Play:
        costs = costs or self.machine.costs(self.text.prompt)
        policy = RowPolicy(
            costs,
            {} if priors is None else priors,
            window,
            recurrent=self.machine.recurrent,
            trims=not self.machine.recurrent,
            repeats=self.text.repeats,
        )

        def choose(offers: list[Proposal], pending: int, context: int) -> Choice:
            return (
                None
                if not offers or policy.skip(offers)
                else policy.choose(offers, pending, context)
            )

        return self.play(choose, policy)


LENGTHS = (1, 2, 3, 4, 5, 7, 11, 15, 31, 63)


@dataclass(frozen=True)
class Outcome:
    """Over the seeds of a world: `regret` against the best fixed choice, `loss` against drafting nothing."""

    regret: float
    loss: float
    best: tuple[tuple[str, ...], int]
    speedup: float


@lru_cache(maxsize=4096)
def fixed_choices(
    machine: Machine, parts: tuple[Part, ...], seeds: int, prompt_tokens: int
) -> dict[tuple[tuple[str, ...], int], float]:
    """Seconds of every fixed choice, all seeds together."""
    runs = [Run(machine, text(parts, seed, prompt_tokens), seed) for seed in range(seeds)]
    choices = [("ngram",), ("draft",), ("ngram", "draft")] if machine.draft else [("ngram",)]
    every = [
        ((), 0),
        *(
            (names, k)
            for names, k in product(choices, LENGTHS)
            if "ngram" in names or k < LONGEST_DRAFT
        ),
    ]
    return {(names, k): sum(run.fixed(names, k) for run in runs) for names, k in every}


def outcome(
    machine: Machine, parts: tuple[Part, ...], seeds: int, prompt_tokens: int = 300
) -> Outcome:
    totals = fixed_choices(replace(machine, calibrated=True), parts, seeds, prompt_tokens)
    best = min(totals, key=lambda choice: totals[choice])
    runs = [Run(machine, text(parts, seed, prompt_tokens), seed) for seed in range(seeds)]
    played = sum(run.adaptive().seconds for run in runs)
    return Outcome(
        played / totals[best] - 1, played / totals[(), 0] - 1, best, totals[(), 0] / totals[best]
    )
