"""Benchmark: prefill and decoding by prompt length and streams, as context and memory allow."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import product
from math import isnan
from statistics import median
from typing import Final

from omlx.engine.memory import stepped
from omlx.engine.piece import ModelRoom
from omlx.engine.speculation.strategy import OFF
from omlx.engine.types import CalibrationState, Request, Sampling, Speculation
from omlx.errors import BadRequest, Overloaded, Reason, optional_reason
from omlx.measure.results import Conditions, ResultStore, StoredResult
from omlx.measure.runner import Measurement, Runner, State, Streams, stop_bias
from omlx.measure.sample import Spread, rotate
from omlx.measure.texts import prompts_of_length
from omlx.models.pool.served import ServedModel
from omlx.server.http.transport import Json

SIZES: Final = (1024, 4096, 16_384, 32_768, 65_536, 131_072)
"""Prompt lengths in tokens."""
STREAMS: Final = (1, 4)
ANSWER_TOKENS: Final = 64
ROUNDS: Final = 3
REPEATED: Final = 4096
"""Tokens — longer prompts take minutes and are measured once, others in `ROUNDS` rounds."""

PREFILL_SPEEDUP: Final = 8
"""Prefill rate / decode rate — weighs the two in `Place.work`."""

CALIBRATION_LOOKS: Final = 30
LOOK_S: Final = 2.0
"""Seconds between looks. A question begins again the time after which an engine is idle."""


class Mode(StrEnum):
    """`DRAFTED`: with speculation as configured for the model."""

    PLAIN = "plain"
    DRAFTED = "drafted"


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """A prompt length in tokens and a number of concurrent streams."""

    tokens: int
    streams: int

    def to_json(self) -> Json:
        return {"tokens": self.tokens, "streams": self.streams}


WARM_UP: Final = Point(128, 1)


@dataclass(frozen=True, slots=True)
class Place:
    """A sample: point, mode and round, counted from 0. `cold`: no part of the prompt is cached."""

    point: Point
    mode: Mode
    number: int
    cold: bool = False

    @property
    def work(self) -> float:
        prompt = self.point.tokens / PREFILL_SPEEDUP if self.cold else 0.0
        return prompt + ANSWER_TOKENS * self.point.streams


def refusal(room: ModelRoom, point: Point) -> Reason | None:
    """Return why a point cannot be measured; None if possible."""
    tokens = point.tokens + ANSWER_TOKENS
    if tokens > room.context:
        return Reason("benchmark.context", {"tokens": tokens, "limit": room.context})
    if point.streams > room.rows:
        return Reason("benchmark.rows", {"streams": point.streams, "limit": room.rows})
    # Caches grow in steps: each stream holds the rounded-up length.
    need = point.streams * room.layout.cache_bytes(stepped(tokens))
    if room.free_bytes is None or need <= room.free_bytes:
        return None
    need_gb, free_gb = (round(max(0, n) / (1 << 30), 1) for n in (need, room.free_bytes))
    return Reason("benchmark.memory", {"need_gb": need_gb, "free_gb": free_gb})


def prompt_lengths(context: int, longest: int = SIZES[-1]) -> list[int]:
    """Return the lengths to measure: `SIZES`, cut to `longest` and to the model's context."""
    most = min(longest, max(1, context - ANSWER_TOKENS))
    return sorted({min(tokens, most) for tokens in SIZES})


def choose_points(room: ModelRoom, longest: int) -> tuple[list[Point], dict[Point, Reason]]:
    """Return the points up to `longest` prompt tokens, and why others do not fit."""
    points, left_out = [], {}
    for tokens, streams in product(prompt_lengths(room.context, longest), STREAMS):
        point = Point(tokens, streams)
        reason = refusal(room, point)
        if reason is None:
            points.append(point)
        else:
            left_out[point] = reason
    return points, left_out


def places(points: Sequence[Point], modes: Sequence[Mode]) -> Iterator[Place]:
    """Yield all samples in order: modes take turns; a single stream prefills each prompt.

    The samples of a round share a prompt, so only the first is `cold`.
    """
    for tokens in sorted({point.tokens for point in points}):
        here = [point for point in points if point.tokens == tokens]
        for number in range(ROUNDS if tokens <= REPEATED else 1):
            cold = True
            for point, mode in product(here, rotate(modes, number)):
                yield Place(point, mode, number, cold)
                cold = False


@dataclass(frozen=True, slots=True)
class Figures:
    """One sample: tokens per second of prefill, and of decoding over all streams.

    `first_s`: seconds to the first token of a cold prompt. `memory_bytes`: peak of the process.
    None: not measured, such as decoding of streams never all active at once. `busy`: other
    programs took more than `BUSY_SHARE` of the processors.
    """

    decode: float | None
    memory_bytes: int
    prefill: float | None = None
    first_s: float | None = None
    acceptance: float | None = None
    busy: bool = False

    @classmethod
    def of(cls, streams: Streams, memory_bytes: int, *, cold: bool) -> Figures:
        sample, first = streams.sample, streams.stats[0]
        decode = None if isnan(sample.rate) else sample.rate
        prefill = first_s = None
        if cold:
            first_s = first.prompt_ms / 1000
            # Tokens restored from the prefix cache are not prefilled.
            prefill = (first.prompt_n - first.cached_n) / first_s
        return cls(decode, memory_bytes, prefill, first_s, sample.acceptance_rate, sample.busy)


class Benchmark(Measurement):
    """A benchmark of prompts up to `longest` tokens.

    `drafters` are permitted by the model's settings; if empty, `no_drafts` says why.
    """

    RUNNING = "benchmark.running"
    HELD = "benchmark.unload"

    def __init__(self, model: str, longest: int) -> None:
        super().__init__(model)
        self.longest = longest
        self.points: list[Point] = []
        self.left_out: dict[Point, Reason] = {}
        self.drafters: Sequence[str] = ()
        self.draft: str | None = None
        self.no_drafts: Reason | None = None
        self.order: list[Place] = []
        self.figures: dict[Place, Figures] = {}
        self.now: Place | None = None
        self._prompts: list[tuple[int, ...]] = []  # of the round

    @property
    def models(self) -> list[str]:
        return [self.model] if self.draft is None else [self.model, self.draft]

    @property
    def share(self) -> float:
        total = sum(place.work for place in self.order)
        return sum(place.work for place in self.figures) / total if total else 0.0

    async def prepare(self, runner: Runner) -> None:
        """Load the model and choose points within its context, rows and memory."""
        lease = await runner.lease(self)
        try:
            served = lease.served
            await _calibrated(runner, served.id)
            room = await asyncio.wrap_future(runner.engine.room(served.id))
        finally:
            lease.release()
        self.points, self.left_out = choose_points(room, self.longest)
        self.draft, self.drafters = served.draft, served.speculation.drafters
        modes: tuple[Mode, ...] = (Mode.PLAIN, Mode.DRAFTED)
        self.no_drafts = served.off_reason
        if not self.drafters:
            self.no_drafts = served.no_draft_reason
        if served.off_reason is not None or not self.drafters:
            self.drafters, modes = (), (Mode.PLAIN,)
        self.order = list(places(self.points, modes))

    async def measure(self, runner: Runner) -> None:
        try:
            # Not recorded: compiles kernels.
            await self._sample(runner, Place(WARM_UP, Mode.PLAIN, 0, cold=True))
            while place := next((each for each in self.order if each not in self.figures), None):
                self.now = place
                started = time.perf_counter()
                try:
                    self.figures[place] = await self._sample(runner, place)
                except (BadRequest, Overloaded) as error:  # the memory guard refuses the prompt
                    self._leave_out(place.point, error.reason)
                self.spent_s += time.perf_counter() - started
        finally:
            self.now = None
            self._prompts = []

    def _leave_out(self, point: Point, reason: Reason) -> None:
        self.left_out[point] = reason
        self.points.remove(point)
        self.order = [place for place in self.order if place.point != point]
        self.figures = {place: f for place, f in self.figures.items() if place.point != point}

    async def _sample(self, runner: Runner, place: Place) -> Figures:
        """Repeat the sample until no user request interrupts."""
        used: list[int] = []  # bytes of the process, as tokens come
        while True:
            if place.cold:  # again, too: an interrupted sample has cached a part of its prompt
                tokens, name = place.point.tokens, uuid.uuid4().hex
                encode = partial(runner.generations.tokenize, self.model, param="prompt")
                self._prompts = await prompts_of_length(encode, name, tokens, max(STREAMS))
            lease = await runner.lease(self)
            requests = [
                _request(f"{self.id}-{row}", tokens, place.mode, lease.served)
                for row, tokens in enumerate(self._prompts[: place.point.streams])
            ]
            used.clear()
            streams = await runner.run(
                lease, requests, lambda tokens: used.append(runner.pool.used_bytes)
            )
            if streams is not None:
                return Figures.of(streams, max(used, default=0), cold=place.cold)
            self.discarded += 1

    def report(self) -> Json:
        """Add points and figures: null if not measured, rates in tokens per second."""
        now = self.now
        return {
            **super().report(),
            "longest": self.longest,
            "share": round(self.share, 4),
            "now": None if now is None else {**now.point.to_json(), "mode": now.mode.value},
            "draft": self.draft,
            "drafters": list(self.drafters),
            "no_drafts": optional_reason(self.no_drafts),
            "rows": [self._row(point) for point in self.points],
            "left_out": [
                {**point.to_json(), "reason": why.to_json()} for point, why in self.left_out.items()
            ],
        }

    def save(self, store: ResultStore, at: float, conditions: Conditions) -> None:
        record = {**self.report(), "state": State.DONE.value}
        store.add_run(self.model, StoredResult(record, at, conditions))

    def _row(self, point: Point) -> Json:
        """Return medians over undisturbed samples, and the verdict on drafts.

        Null if fewer than half of a mode's are undisturbed, or rounds differ too much.
        """
        every = {place: each for place, each in self.figures.items() if place.point == point}
        by_mode, busy = dict[Mode, dict[int, Figures]](), False
        for mode in Mode:
            measured = {place.number: each for place, each in every.items() if place.mode is mode}
            by_mode[mode] = {n: each for n, each in measured.items() if not each.busy}
            busy = busy or 2 * len(by_mode[mode]) < len(measured)
        verdict = row_verdict(by_mode[Mode.PLAIN], by_mode[Mode.DRAFTED])
        if busy:
            verdict = {"code": "benchmark.verdict.busy"}
        # Such a mode voids the whole row: modes are shown for comparison.
        void = verdict is not None and verdict["code"] in VOID
        plain, drafted = ([], []) if void else [list(by_mode[mode].values()) for mode in Mode]
        figures = [*plain, *drafted]
        return {
            **point.to_json(),
            "prefill": _median(found.prefill for found in figures),
            "first_s": _median((found.first_s for found in figures), digits=3),
            "plain": _spread(plain),
            "drafted": _spread(drafted),
            "acceptance": _median((found.acceptance for found in drafted), digits=3),
            "memory_bytes": max((found.memory_bytes for found in every.values()), default=None),
            "busy": busy,
            "verdict": verdict,
        }


VOID: Final = ("benchmark.verdict.busy", "benchmark.verdict.noisy")
"""Verdicts on rows without figures."""


def row_verdict(plain: Mapping[int, Figures], drafted: Mapping[int, Figures]) -> Json | None:
    """Return the effect of drafts as a code with figures, from samples by round.

    `speedup` with `low` and `high` is over rounds with both modes; `factor`: by which rounds
    differ if a repeat would not agree. None without drafts or samples.
    """
    rates = {number: each.decode for number, each in plain.items() if each.decode}
    ratios = [
        each.decode / rates[number]
        for number, each in drafted.items()
        if number in rates and each.decode
    ]
    noise = Spread.of(list(rates.values())).noise(of_speedups=False) if rates else None
    if ratios:
        noise = max(noise or 0.0, Spread.of(ratios).noise(of_speedups=True) or 0.0) or None
    if noise is not None:
        return {"code": "benchmark.verdict.noisy", "factor": round(noise, 1)}
    if not ratios:
        return None
    spread = Spread.of(ratios)
    effect = "once" if len(ratios) == 1 else spread.gain.value
    low, speedup, high = spread.to_json(3).values()
    return {"code": f"benchmark.verdict.{effect}", "speedup": speedup, "low": low, "high": high}


async def _calibrated(runner: Runner, model: str) -> None:
    """Wait for the calibration, which does not begin between the requests of a benchmark."""
    for _ in range(CALIBRATION_LOOKS):
        snapshot = await asyncio.wrap_future(runner.engine.snapshot(model))
        if snapshot is None or snapshot.calibration is not CalibrationState.PENDING:
            return
        await asyncio.sleep(LOOK_S)


def _request(request_id: str, tokens: tuple[int, ...], mode: Mode, served: ServedModel) -> Request:
    """Return a greedy request of exactly `ANSWER_TOKENS` tokens."""
    speculation = Speculation(OFF)
    if mode is Mode.DRAFTED:
        configured = served.speculation
        speculation = Speculation(configured.strategy, configured.draft_length)
    return Request(
        id=f"benchmark-{request_id}",
        tokens=tokens,
        # Biased against stop tokens: the answer reaches its full length.
        sampling=Sampling(temperature=0.0, logit_bias=stop_bias(served)),
        max_tokens=ANSWER_TOKENS,
        stop_ids=served.stop_ids,
        speculation=speculation,
    )


def _median(values: Iterable[float | None], digits: int = 1) -> float | None:
    known = [value for value in values if value is not None]
    return round(median(known), digits) if known else None


def _spread(figures: Sequence[Figures]) -> Json | None:
    rates = [found.decode for found in figures if found.decode is not None]
    return Spread.of(rates).to_json(1) if rates else None
