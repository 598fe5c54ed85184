"""A trial from its first sample to its verdict.

    wait until idle ─► lease the model with a draft ─► run a request ─► sample     three to five
          ▲                                                 │                      rounds of all
          └────────────── a user's request arrived ◄────────┘ sample discarded     places

The model is leased only while a sample runs, so a user's request waits for one engine step at most.
Prompts and answers stay in memory.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from omlx.errors import ModelError, Reason
from omlx.measure.interleave import rotate
from omlx.models.pool.pool import Pool
from omlx.models.pool.served import Lease, ServedModel
from omlx.server.request.generation import GenerationService
from omlx.trial.configurations import (
    MAX_ROUNDS,
    MIN_ROUNDS,
    WARM_UP_TOKENS,
    TrialConfiguration,
    Visit,
    configurations,
    visits,
)
from omlx.trial.run_sample import (
    Prompt,
    SampleRunner,
    build_request,
    conversation_prompt,
    read_prompt,
)
from omlx.trial.samples import Place, Samples
from omlx.trial.texts import Kind, question
from omlx.trial.verdict import Verdict, verdict

REPEAT_S: Final = 1.0
"""Seconds after which `Trial.follow` yields although nothing has changed."""


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
    """What to measure: drafts by id, kinds of text, answers of at most `tokens` tokens.

    `conversation` holds the token ids of the model's last prompt, `picture` the data URI of an
    image, if these are among the kinds.
    """

    model: str
    drafts: tuple[str, ...]
    kinds: tuple[Kind, ...]
    tokens: int
    conversation: tuple[int, ...] = ()
    picture: str = ""

    @property
    def configurations(self) -> tuple[TrialConfiguration, ...]:
        return configurations(self.drafts)

    @property
    def visits(self) -> tuple[Visit, ...]:
        return visits(self.drafts)

    @property
    def answers(self) -> int:
        """Samples per round."""
        return len(self.kinds) * sum(len(visit.configurations) for visit in self.visits)


@dataclass(slots=True, eq=False)
class Trial:
    """The state of a trial, written by its runner. `rounds`: how many there will be, as known now.

    `now` is the place of the running sample, with `now_tokens` so far; None during warm-up and
    pauses. `discarded` counts the samples that a user's request interrupted, `spent_s` the seconds
    of the others.
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
        """Remaining seconds at the pace so far; None before the first sample."""
        return self.spent_s / self.done * (self.total - self.done) if self.done else None

    def set_tokens(self, tokens: int) -> None:
        """Record how many tokens the running sample has."""
        self.now_tokens = tokens
        self.change()

    def change(self) -> None:
        """Wake the followers."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def follow(self, every_s: float) -> AsyncIterator[None]:
        """Yield at once, after changes (at most once in `every_s` seconds), and when it is over.

        Yields every second while nothing changes.
        """
        while True:
            changed = self._changed
            yield
            if self.state.over:
                return
            await asyncio.sleep(every_s)
            with suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), REPEAT_S)


class TrialRunner:
    """Runs trials."""

    def __init__(
        self,
        sample_runner: SampleRunner,
        pool: Pool,
        generations: GenerationService,
    ) -> None:
        self._sample_runner = sample_runner
        self._pool = pool
        self._generations = generations
        self._warm: ServedModel | None = None
        self._clock = time.perf_counter

    async def run(self, trial: Trial) -> None:
        """Measure to the verdict. Raises OmlxError; the caller sets the trial's final state."""
        try:
            await self._run_rounds(trial)
        finally:
            self._warm = trial.now = None
        trial.verdict = verdict(trial.samples, trial.plan.configurations, trial.plan.kinds)

    async def _run_rounds(self, trial: Trial) -> None:
        plan = trial.plan
        while (number := trial.done // plan.answers) < trial.rounds:
            prompts = {kind: await self._prompt(plan, kind, number) for kind in plan.kinds}
            for visit in rotate(plan.visits, number):
                for kind, configuration in visit.order(plan.kinds, number):
                    place = Place(number, visit.draft, kind, configuration)
                    await self._run_sample(trial, visit, place, prompts[kind])
            last = number + 1 == trial.rounds
            if (
                last
                and trial.rounds < MAX_ROUNDS
                and trial.samples.undecided(plan.configurations, plan.kinds)
            ):
                trial.rounds += 1

    async def _prompt(self, plan: Plan, kind: Kind, number: int) -> Prompt:
        seed = number + 1
        if kind is Kind.CONVERSATION:
            return conversation_prompt(plan.conversation, seed)
        picture = plan.picture if kind is Kind.PICTURE else ""
        asked = question(kind, number)
        return await read_prompt(self._generations, plan.model, asked, seed, picture)

    async def _run_sample(self, trial: Trial, visit: Visit, place: Place, prompt: Prompt) -> None:
        """Repeat until one sample ran undisturbed."""
        while place not in trial.samples.by_place:
            lease = await self._lease(trial, visit)
            if lease.served is not self._warm:
                lease.release()
                await self._warm_up(trial, visit, prompt)
                continue
            started = self._clock()
            trial.now, trial.now_tokens = place, 0
            trial.change()
            request = build_request(prompt, place.configuration, trial.plan.tokens, lease.served)
            sample = await self._sample_runner.run(lease, request, trial.set_tokens)
            trial.now = None
            if sample is None:
                trial.discarded += 1
            else:
                trial.spent_s += self._clock() - started
                trial.samples.add(place, sample)
            trial.change()

    async def _warm_up(self, trial: Trial, visit: Visit, prompt: Prompt) -> None:
        """Run every configuration briefly: compiles kernels, loads pages, fills the cost model.

        Gives up when a user's request arrives or the model was replaced.
        """
        served: ServedModel | None = None
        for configuration in visit.configurations:
            lease = await self._lease(trial, visit)
            if served not in (None, lease.served):
                lease.release()
                return
            served = lease.served
            request = build_request(prompt, configuration, WARM_UP_TOKENS, served)
            if await self._sample_runner.run(lease, request, lambda tokens: None) is None:
                return
        self._warm = served

    async def _lease(self, trial: Trial, visit: Visit) -> Lease:
        """Lease the model with the draft of a visit once no user needs it.

        Raises ModelError if its cache cannot be rewound, so that nothing can be speculated.
        """
        await self._wait_until_idle(trial)
        lease = await self._pool.lease(trial.plan.model, visit.draft)
        if lease.served.off_reason is not None:
            lease.release()
            raise ModelError(
                lease.served.off_reason.code, param=None, **lease.served.off_reason.params
            )
        return lease

    async def _wait_until_idle(self, trial: Trial) -> None:
        def pause() -> None:
            trial.state = State.PAUSED
            trial.change()

        await self._sample_runner.wait_until_idle(pause)
        if trial.state is State.PAUSED:
            trial.state = State.RUNNING
            trial.change()
