"""The real speculator, played in simulated worlds against every fixed choice.

Noise is keyed by position, so the speculator and every baseline meet the same luck. No clock, no
model.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

from omlx.draft_length import DraftLength
from omlx.engine.speculation.cost_model import PLAIN, CostModel
from omlx.engine.speculation.drafter import Draft, Drafter, Proposal
from omlx.engine.speculation.drafters.draft_model import LOOK_BACK
from omlx.engine.speculation.drafters.ngram import NgramDrafter
from omlx.engine.speculation.drafting import MAX_PENDING
from omlx.engine.speculation.policy import History, RowPolicy
from omlx.engine.speculation.speculator import Speculator
from omlx.engine.speculation.strategy import AUTO, Clause, Strategy
from omlx.engine.step.row import Clock, Interval, Row
from omlx.engine.types import Request, Speculation, Traits
from tests.engine.speculation.worlds import LONGEST_DRAFT, Machine, Part, Text, text

FIRST_TIMED, TIMED_EVERY = 4, 16
"""Rounds of the draft model that are timed on their own: the first, and then one in so many."""

BARRIER_SECONDS = 0.02
"""What a step costs that cannot be launched before the one ahead of it is read, in plain steps."""

SLEPT_SECONDS = 8 * 3600.0
WRONG = -2


class SimulatedDraftModel(Drafter):
    """A draft model that is right as long as its text says, and that times some of its rounds."""

    kind = "draft"
    name = "draft"

    def __init__(self, run: Run) -> None:
        self.seconds = 0.0
        self._run = run
        self._read = 0
        self._skipped = 0
        self._first = 0
        self._drafted = 0
        self._rounds = 0

    def propose(self, row: Row, limit: int, clause: Clause) -> Proposal | None:
        length = min(limit, LONGEST_DRAFT)
        if length < 1:
            return None
        if not self._rounds and len(row.tokens) > 2 * LOOK_BACK:
            self._read = self._skipped = len(row.tokens) - LOOK_BACK
        lag = len(row.tokens) - self._read
        return Proposal(self.name, length, lag=lag, skipped=self._skipped, clause=clause)

    def read_whole(self, row: Row) -> None:
        self._read = self._skipped = 0

    def draft(self, row: Row, limit: int) -> Draft | None:
        context, text = len(row.tokens), self._run.text
        at = context - text.prompt
        noise = self._run.noise[at]
        self.seconds = self._run.machine.drafting(limit, context - self._read, context) * noise
        self._first, self._drafted = context, limit
        self._rounds += 1
        right = min(limit, text.drafted[at])
        if self._skipped and at * 7919 % 100 >= 100 * self._run.foresight:
            right = 0
        tokens = (*text.output[at : at + right], *(WRONG,) * (limit - right))
        timed = self._rounds <= FIRST_TIMED or self._rounds % TIMED_EVERY == 0
        return Draft(self.name, limit, tokens, seconds=self.seconds if timed else None)

    def observe(self, row: Row, accepted: int) -> None:
        # The last token of a draft was never read.
        self._read = self._first + min(accepted, self._drafted - 1)

    def drop(self, row: int) -> None:
        self._read = 0


@dataclass
class Launch:
    """A step in flight until `end`. Its window begins at `start`; output token `at` is next."""

    at: int
    start: int
    pending: int
    width: int
    draft: Draft | None
    end: float


@dataclass
class Play:
    """What came of it. `log[i]` is (position, drafter, k, accepted) of a round."""

    seconds: float
    log: list[tuple[int, str, int, int]]
    policy: RowPolicy | None = None


class Engine:
    """One row, stepped as `EngineLoop` and `Planner` do it: the next step is launched before this
    one is read, unless this one verifies or the speculator would draft."""

    def __init__(
        self, run: Run, speculation: Speculation, cost_model: CostModel, history: History
    ) -> None:
        text, machine = run.text, run.machine
        request = Request("simulated", text.prompt_tokens, speculation=speculation)
        end = text.prompt + text.size
        self.row = Row(0, request, list(text.prompt_tokens), end, Clock(0.0))
        self.row.computed = text.prompt - 1
        self.model = SimulatedDraftModel(run)
        drafters: list[Drafter] = [NgramDrafter()]
        if machine.draft:
            drafters.append(self.model)
        self.speculator = Speculator(
            drafters, traits=Traits(machine.recurrent), cost_model=cost_model, _history=history
        )
        self.log: list[tuple[int, str, int, int]] = []
        self.now = 0.0
        self._run = run
        self._flight: Launch | None = None
        self._read_at = 0.0
        self._overlapped: bool | None = None
        self._compiled = {1}

    def play(self) -> Play:
        while len(self.row.tokens) < self.row.end:
            if self._flight is not None and self._must_commit_first(self._flight):
                self._commit(self._flight, overlapped=False)
                self._flight = None
                continue
            following = self._launch()
            if self._flight is not None:
                self._commit(self._flight, overlapped=True)
            self._flight = following
        gates = self.speculator.gates(self.row).values()
        reasons = {gate.reason.code for gate in gates if gate.reason is not None}
        assert "spec.off.drafter_failed" not in reasons
        return Play(self.now, self.log, self.speculator._rows[0].policy)

    def _must_commit_first(self, flight: Launch) -> bool:
        if flight.draft is not None or self.row.remaining < 1:
            return True
        return self.speculator.wants([self.row])

    def _launch(self) -> Launch:
        run, row, draft = self._run, self.row, None
        if row.unread:
            self.speculator.decode_plainly([row])
        elif not self.speculator.record_refusal(row):
            draft = self.speculator.draft([row]).get(row.id)
        start, pending, context = row.computed, row.pending, len(row.tokens) + row.unread
        at = context - run.text.prompt
        drafted = draft.n if draft is not None else 0
        seconds = run.machine.verify(pending + drafted, context) * run.noise[at]
        if pending + drafted not in self._compiled:
            self._compiled.add(pending + drafted)
            seconds *= run.machine.first_time
        if draft is not None and draft.drafter == self.model.name:
            seconds += self.model.seconds
        begin = self.now + BARRIER_SECONDS if self._flight is None else self._flight.end
        row.computed += pending + drafted
        row.unread += 1
        row.unverified = drafted
        return Launch(at, start, pending, pending + drafted, draft, begin + seconds)

    def _commit(self, flight: Launch, *, overlapped: bool) -> None:
        row, draft, output = self.row, flight.draft, self._run.text.output
        self.now = flight.end
        interval = None
        if overlapped == self._overlapped:
            took = self.now - self._read_at
            if flight.at == self._run.sleep_at:
                took += SLEPT_SECONDS
            interval = Interval(took, PLAIN if overlapped else flight.width)
        self._read_at, self._overlapped = self.now, overlapped
        proposed = () if draft is None else draft.tokens
        coming = output[flight.at : flight.at + len(proposed)]
        pairs = enumerate(zip(proposed, coming, strict=True))
        accepted = next((i for i, (ours, right) in pairs if ours != right), len(proposed))
        new = output[flight.at : flight.at + accepted + 1]
        row.unread -= 1
        row.unverified = 0
        row.tokens += new
        if draft is not None:
            verified = min(flight.start + flight.pending + accepted, len(row.tokens))
            if verified < row.computed:
                row.computed = flight.start if self._run.machine.recurrent else verified
            observe = self.speculator.observe_verification
            observe(row, draft.drafter, draft.n, accepted, "full", "none")
        self.speculator.observe_commit(row, new, interval)
        if draft is None:
            self.log.append((flight.at, "", 0, 0))
        else:
            self.log.append((flight.at, draft.drafter, draft.n, accepted))


class Run:
    """One player on one machine and text. `noise` is by position, so all players meet the same.

    A draft model that read only the prompt's end is right in no more than a share of the places,
    its `foresight`.
    """

    def __init__(
        self,
        machine: Machine,
        played: Text,
        seed: int = 0,
        sleep_at: int = -1,
        foresight: float = 1.0,
    ) -> None:
        self.foresight = foresight
        self.machine = machine
        self.text = played
        self.sleep_at = sleep_at
        rng = random.Random(seed)
        noise = [max(0.7, rng.gauss(1.0, machine.noise)) for _ in range(played.size + 1)]
        self.noise = [value * (1.5 if rng.random() < 0.01 else 1.0) for value in noise]

    def adaptive(
        self,
        draft_length: DraftLength | None = None,
        cost_model: CostModel | None = None,
        history: History | None = None,
        strategy: Strategy = AUTO,
    ) -> Play:
        """The request as the real speculator plays it."""
        speculation = Speculation(strategy, draft_length)
        cost_model = cost_model or self.machine.costs(self.text.prompt)
        return Engine(self, speculation, cost_model, history or History()).play()

    def fixed(self, names: tuple[str, ...], k: int) -> float:
        """Seconds with the first drafter of `names` that proposes anything, always `k` tokens.

        The same as the engine plays with this fixed draft length, in a fraction of the time.
        """
        text, machine = self.text, self.machine
        lookups, models = "ngram" in names, "draft" in names and machine.draft > 0
        at, read, pending, total, launched_ahead = 0, 0, 1, 0.0, False
        while at < text.size:
            context, noise = text.prompt + at, self.noise[at]
            length, right = 0, 0
            if not launched_ahead and pending <= MAX_PENDING:
                length = min(k, text.size - at - 1)
                if lookups and text.match[at]:
                    right = text.hits[at]
                elif models and length > 0:
                    length, right = min(length, LONGEST_DRAFT), text.drafted[at]
                    total += machine.drafting(length, context - read, context) * noise
                    read = context + min(right, length - 1)
                else:
                    length = 0
            accepted = min(length, right)
            total += machine.verify(pending + length, context) * noise
            if not launched_ahead:
                total += BARRIER_SECONDS
            # While a plain step is in flight, a proposal behind the tokens before it waits for it.
            proposed = (
                k > 0 and text.size - at - 2 > 0 and bool(models or (lookups and text.match[at]))
            )
            launched_ahead = length == 0 and not proposed and at < text.size - 1
            debt = accepted < length and machine.recurrent
            pending = pending + accepted + 1 if debt else 1
            at += accepted + 1
        return total


def served(runs: Sequence[Run], prompt_tokens: int = 300) -> list[Play]:
    """Play requests one after another in one server, which knows its costs behind such a prompt."""
    costs, history = runs[0].machine.costs(prompt_tokens), History()
    return [run.adaptive(cost_model=costs, history=history) for run in runs]


LENGTHS = (1, 2, 3, 4, 5, 7, 11, 15, 31, 63)


@dataclass(frozen=True)
class Outcome:
    """`regret` against the best fixed choice, `loss` against plain decoding, over all seeds."""

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
