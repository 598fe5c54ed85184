"""A trial from its first answer to its verdict.

    waits for quiet ─► leases the model with a draft ─► answers ─► a sample      three to five rounds of all places
          ▲                                                │
          └────────────── somebody else came ◄─────────────┘  the sample is thrown away

It holds the model only while one of its answers is on its way, so nobody waits for longer than a step. What it asks and
is answered stays in memory.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from omlx.errors import ModelError, Reason
from omlx.models.pool.pool import Pool
from omlx.models.pool.resident import Lease, ServedModel
from omlx.server.generation import Generations
from omlx.trial.configurations import (
    MAX_ROUNDS,
    MIN_ROUNDS,
    WARM_TOKENS,
    TrialConfiguration,
    Visit,
    configurations,
    visits,
)
from omlx.trial.run_sample import Asked, SampleRunner, continued, read, request
from omlx.trial.samples import Place, Samples
from omlx.trial.texts import Kind, question
from omlx.trial.verdict import Verdict, verdict

QUIET_S: Final = 1.0
"""For so long nobody must have wanted anything before it goes on."""

LOOK_S: Final = 0.05
_AGAIN_S: Final = 1.0


class State(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def over(self) -> bool:
        return self not in (State.RUNNING, State.PAUSED)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be tried: drafts by id, kinds of text, answers of at most so many `tokens`.

    `conversation` is the prompt of the last one, where that is a kind.
    """

    model: str
    drafts: tuple[str, ...]
    kinds: tuple[Kind, ...]
    tokens: int
    conversation: tuple[int, ...] = ()

    @property
    def configurations(self) -> tuple[TrialConfiguration, ...]:
        return configurations(self.drafts)

    @property
    def visits(self) -> tuple[Visit, ...]:
        return visits(self.drafts)

    @property
    def answers(self) -> int:
        """How many answers count in a round."""
        return len(self.kinds) * sum(len(visit.configurations) for visit in self.visits)


@dataclass(slots=True, eq=False)
class Trial:
    """Written by who carries it out; read by whoever follows it. `rounds` is how many there will be, as far as anybody
    can tell.

    `now` is what is being answered, with `now_tokens` so far; None while it warms up or waits. `discarded` counts the
    answers that somebody else's request touched. `spent_s` is the time that the others took.
    """

    id: str
    plan: Plan
    state: State = State.RUNNING
    samples: Samples = field(default_factory=Samples)
    verdict: Verdict | None = None
    reason: Reason | None = None
    rounds: int = MIN_ROUNDS
    now: Place | None = None
    now_tokens: int = 0
    discarded: int = 0
    spent_s: float = 0.0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def done(self) -> int:
        return len(self.samples.by_place)

    @property
    def total(self) -> int:
        return self.rounds * self.plan.answers

    @property
    def left_s(self) -> float | None:
        """What the rest will take, going by what was; None before there is anything to go by."""
        return self.spent_s / self.done * (self.total - self.done) if self.done else None

    def told(self, tokens: int) -> None:
        """How many tokens there are of what is being answered."""
        self.now_tokens = tokens
        self.change()

    def change(self) -> None:
        """Wake those who follow."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def follow(self, every_s: float) -> AsyncIterator[None]:
        """Something to tell: at once, after changes (at most one in `every_s`), and last of all when it is over.

        Where nothing changes it is told again every second.
        """
        while True:
            changed = self._changed
            yield
            if self.state.over:
                return
            await asyncio.sleep(every_s)
            with suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), _AGAIN_S)


class TrialRunner:
    """Carries out trials. `quiet_s`: for so long nobody must have wanted anything before an answer is begun."""

    def __init__(
        self,
        answering: SampleRunner,
        pool: Pool,
        generations: Generations,
        quiet_s: float = QUIET_S,
    ) -> None:
        self._answering = answering
        self._pool = pool
        self._generations = generations
        self._quiet_s = quiet_s
        self._warm: ServedModel | None = None
        self._clock = time.perf_counter

    async def run(self, trial: Trial) -> None:
        """To the verdict. Raises OmlxError; the trial's state is for the caller to end."""
        try:
            await self._rounds(trial)
        finally:
            self._warm = trial.now = None
        trial.verdict = verdict(trial.samples, trial.plan.configurations, trial.plan.kinds)

    async def _rounds(self, trial: Trial) -> None:
        plan = trial.plan
        while (number := trial.done // plan.answers) < trial.rounds:
            asked = {kind: await self._asked(plan, kind, number) for kind in plan.kinds}
            for visit in _turned(plan.visits, number):
                for kind, configuration in visit.order(plan.kinds, number):
                    await self._sample(
                        trial, visit, Place(number, visit.draft, kind, configuration), asked[kind]
                    )
            if number + 1 == trial.rounds < MAX_ROUNDS and trial.samples.undecided(
                plan.configurations, plan.kinds
            ):
                trial.rounds += 1

    async def _asked(self, plan: Plan, kind: Kind, number: int) -> Asked:
        seed = number + 1
        if kind is Kind.CONVERSATION:
            return continued(plan.conversation, seed)
        return await read(self._generations, plan.model, question(kind, number), seed)

    async def _sample(self, trial: Trial, visit: Visit, place: Place, asked: Asked) -> None:
        """One answer that nobody touched."""
        while place not in trial.samples.by_place:
            lease = await self._lease(trial, visit)
            if lease.served is not self._warm:
                lease.release()
                await self._warm_up(trial, visit, asked)
                continue
            began = self._clock()
            trial.now, trial.now_tokens = place, 0
            trial.change()
            wanted = request(asked, place.configuration, trial.plan.tokens, lease.served)
            sample = await self._answering.answer(lease, wanted, trial.told)
            trial.now = None
            if sample is None:
                trial.discarded += 1
            else:
                trial.spent_s += self._clock() - began
                trial.samples.add(place, sample)
            trial.change()

    async def _warm_up(self, trial: Trial, visit: Visit, asked: Asked) -> None:
        """Run everything shortly: kernels are made, pages come in, costs become known. In vain if somebody comes."""
        served: ServedModel | None = None
        for configuration in visit.configurations:
            lease = await self._lease(trial, visit)
            if served not in (None, lease.served):
                lease.release()
                return
            served = lease.served
            wanted = request(asked, configuration, WARM_TOKENS, served)
            if await self._answering.answer(lease, wanted, lambda tokens: None) is None:
                return
        self._warm = served

    async def _lease(self, trial: Trial, visit: Visit) -> Lease:
        """The model with the draft of a visit, once nobody else wants anything."""
        await self._quiet(trial)
        lease = await self._pool.lease(trial.plan.model, visit.draft)
        if lease.served.off is not None:  # its cache cannot go back: there is nothing to try
            lease.release()
            raise ModelError(lease.served.off.code, param=None, **lease.served.off.params)
        return lease

    async def _quiet(self, trial: Trial) -> None:
        if not self._answering.requests:
            return
        trial.state = State.PAUSED
        trial.change()
        since = self._clock()
        while self._clock() - since < self._quiet_s:
            await asyncio.sleep(LOOK_S)
            if self._answering.requests:
                since = self._clock()
        trial.state = State.RUNNING
        trial.change()


def _turned(all_visits: Sequence[Visit], number: int) -> list[Visit]:
    """In each round beginning with another one, so that none always comes when the machine is warm."""
    first = number % len(all_visits)
    return [*all_visits[first:], *all_visits[:first]]
