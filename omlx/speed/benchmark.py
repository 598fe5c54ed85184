"""A benchmark from its first sample to its last.

    wait until idle ─► lease the model ─► run one or four streams ─► figures of a place
          ▲                                        │
          └───── a user's request arrived ◄────────┘ sample discarded, repeated

The model is leased only while a sample runs, so a user's request waits for one engine step at most.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from math import isnan
from typing import Final

from omlx.engine.strategy import OFF
from omlx.engine.thread import EngineThread
from omlx.engine.types import Request, Sampling, Speculation
from omlx.errors import BadRequest, Overloaded, Reason
from omlx.models.pool.pool import Pool
from omlx.models.pool.served import ServedModel
from omlx.server.request.generation import GenerationService
from omlx.speed.points import (
    ANSWER_TOKENS,
    STREAMS,
    LeftOut,
    Mode,
    Place,
    Point,
    Room,
    choose_points,
    places,
)
from omlx.speed.prompts import Prompts
from omlx.trial.estimate import PREFILL_SPEEDUP
from omlx.trial.run_sample import STOP_BIAS, SampleRunner, Streams
from omlx.trial.trial import State

WARM_UP: Final = Point(128, 1)


@dataclass(frozen=True, slots=True)
class Figures:
    """One sample: tokens per second of prefill and, of all streams together, of decoding.

    `first_s` are the seconds to the first token of a cold prompt; `memory_bytes` the most that the
    process took meanwhile. None: not measured by this sample, such as decoding of streams that were
    never all at it.
    """

    decode: float | None
    memory_bytes: int
    prefill: float | None = None
    first_s: float | None = None
    acceptance: float | None = None


@dataclass(slots=True, eq=False)
class Benchmark:
    """The state of a benchmark, written by its runner.

    `longest` bounds the prompts, in tokens. `drafters` are those that the model's settings admit;
    without any, `no_drafts` says why. `spent` and `work` count tokens by the time that they take.
    """

    id: str
    model: str
    longest: int
    state: State = State.RUNNING
    points: Sequence[Point] = ()
    left_out: Sequence[LeftOut] = ()
    drafters: Sequence[str] = ()
    draft: str | None = None
    no_drafts: Reason | None = None
    order: Sequence[Place] = ()
    figures: dict[Place, Figures] = field(default_factory=dict)
    now: Place | None = None
    discarded: int = 0
    spent_s: float = 0.0
    reason: Reason | None = None

    @property
    def next_place(self) -> Place | None:
        """The first place without figures; None after the last one."""
        return next((place for place in self.order if place not in self.figures), None)

    def leave_out(self, point: Point, reason: Reason) -> None:
        """Measure no more of a point."""
        self.left_out = [*self.left_out, LeftOut(point, reason)]
        self.points = [other for other in self.points if other != point]
        self.order = [place for place in self.order if place.point != point]
        self.figures = {place: f for place, f in self.figures.items() if place.point != point}

    @property
    def share(self) -> float:
        """How much of the work is done, between 0 and 1."""
        total = sum(map(_work, self.order))
        return sum(map(_work, self.figures)) / total if total else 0.0

    @property
    def left_s(self) -> float | None:
        """Remaining seconds at the pace so far; None before the first sample."""
        return self.spent_s / self.share - self.spent_s if self.share else None


class BenchmarkRunner:
    """Measures on the event loop, through the engine of the server."""

    def __init__(
        self,
        engine: EngineThread,
        pool: Pool,
        generations: GenerationService,
        sample_runner: SampleRunner,
    ) -> None:
        self._engine = engine
        self._pool = pool
        self._generations = generations
        self._samples = sample_runner
        self._ids: list[tuple[int, ...]] = []  # the prompts of the round

    async def run(self, benchmark: Benchmark) -> None:
        """Measure all places. Raises OmlxError; the caller sets the final state."""
        prompts = Prompts(partial(self._generations.tokenize, benchmark.model, param="prompt"))
        try:
            await self._plan(benchmark)
            await self._measure(benchmark, Place(WARM_UP, Mode.PLAIN, 0, cold=True), prompts)
            while (place := benchmark.next_place) is not None:
                benchmark.now = place
                started = time.perf_counter()
                try:
                    benchmark.figures[place] = await self._measure(benchmark, place, prompts)
                except (BadRequest, Overloaded) as error:  # the memory guard refuses the prompt
                    benchmark.leave_out(place.point, Reason(error.code, error.params))
                benchmark.spent_s += time.perf_counter() - started
        finally:
            benchmark.now = None
            self._ids = []

    async def _plan(self, benchmark: Benchmark) -> None:
        """Load the model, and ask what it has room for."""
        await self._wait_until_idle(benchmark)
        lease = await self._pool.lease(benchmark.model)
        try:
            served = lease.served
            room = await asyncio.wrap_future(self._engine.with_loop(served.id, Room.of))
        finally:
            lease.release()
        benchmark.points, benchmark.left_out = choose_points(room, benchmark.longest)
        benchmark.draft = served.draft
        benchmark.drafters = served.speculation.drafters
        modes: tuple[Mode, ...] = (Mode.PLAIN, Mode.DRAFTED)
        benchmark.no_drafts = served.off_reason
        if not benchmark.drafters:
            benchmark.no_drafts = served.no_draft_reason
        if served.off_reason is not None or not benchmark.drafters:
            benchmark.drafters, modes = (), (Mode.PLAIN,)
        benchmark.order = list(places(benchmark.points, modes))

    async def _measure(self, benchmark: Benchmark, place: Place, prompts: Prompts) -> Figures:
        """Repeat until one sample ran undisturbed."""
        while True:
            if place.cold:  # again, too: an interrupted sample has cached a part of its prompt
                tokens, name = place.point.tokens, uuid.uuid4().hex
                self._ids = await prompts.make(name, tokens, max(STREAMS))
            await self._wait_until_idle(benchmark)
            lease = await self._pool.lease(benchmark.model)
            requests = [
                _request(f"{benchmark.id}-{row}", ids, place.mode, lease.served)
                for row, ids in enumerate(self._ids[: place.point.streams])
            ]
            used = _Peak(self._pool)
            streams = await self._samples.run_together(lease, requests, used.look)
            if streams is not None:
                return _figures(streams, used.most_bytes, cold=place.cold)
            benchmark.discarded += 1

    async def _wait_until_idle(self, benchmark: Benchmark) -> None:
        def pause() -> None:
            benchmark.state = State.PAUSED

        await self._samples.wait_until_idle(pause)
        benchmark.state = State.RUNNING


class _Peak:
    """The most memory that the process took, in bytes."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.most_bytes = 0

    def look(self, tokens: int) -> None:
        self.most_bytes = max(self.most_bytes, self._pool.used_bytes)


def _request(request_id: str, tokens: tuple[int, ...], mode: Mode, served: ServedModel) -> Request:
    """Return a greedy request whose answer has its full length."""
    speculation = Speculation(OFF)
    if mode is Mode.DRAFTED:
        configured = served.speculation
        speculation = Speculation(configured.strategy, configured.draft_length)
    bias = tuple((stop, STOP_BIAS) for stop in sorted(served.stop_ids))
    return Request(
        id=f"benchmark-{request_id}",
        tokens=tokens,
        sampling=Sampling(temperature=0.0, logit_bias=bias),
        max_tokens=ANSWER_TOKENS,
        stop_ids=served.stop_ids,
        speculation=speculation,
    )


def _figures(streams: Streams, memory_bytes: int, *, cold: bool) -> Figures:
    sample, first = streams.sample, streams.stats[0]
    decode = None if isnan(sample.rate) else sample.rate
    prefill = first_s = None
    if cold:
        first_s = first.prompt_ms / 1000
        prefill = (first.prompt_n - first.cached_n) / first_s
    return Figures(decode, memory_bytes, prefill, first_s, sample.acceptance_rate)


def _work(place: Place) -> float:
    """The time that a sample takes, in decoded tokens."""
    prompt = place.point.tokens / PREFILL_SPEEDUP if place.cold else 0.0
    return prompt + ANSWER_TOKENS * place.point.streams
