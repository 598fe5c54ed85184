"""A measurement of a model, and the runner of its requests in the engine of the running server.

    wait until idle ─► lease the model ─► run requests ─► sample ─► next place
          ▲                                    │
          └──── a user's request arrived ◄─────┘ sample discarded, repeated

The model is leased only while a sample runs, so a user's request waits for one engine step at most.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Final, TypeVar

from omlx.engine.thread import EngineThread
from omlx.engine.types import Event, Failed, Finished, Request, TokensCommitted
from omlx.errors import Conflict, OmlxError, Reason, optional_reason
from omlx.measure.results import Conditions, ResultStore
from omlx.measure.sample import Meter, Sample
from omlx.models.pool.pool import Pool
from omlx.models.pool.served import Lease, ServedModel
from omlx.records import DRAFTER_FAILED, RequestStats
from omlx.server.http.errors import unexpected
from omlx.server.request.generation import GenerationService

STOP_BIAS: Final = -100.0
"""Logit bias on stop tokens — answers reach their full length."""

IDLE_S: Final = 1.0
"""Seconds without a user's request before a paused measurement resumes."""

POLL_S: Final = 0.05

REPEAT_S: Final = 1.0
"""Seconds — `Measurement.follow` yields this often without changes."""

log = logging.getLogger("omlx.measure")


class State(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def over(self) -> bool:
        return self not in (State.RUNNING, State.PAUSED)


class Measurement(ABC):
    """State of a measurement, written by its plan (a subclass) and the runner.

    `discarded` counts samples interrupted by a user's request, `spent_s` the seconds of the others;
    `ended_at`: monotonic seconds.
    `RUNNING` and `HELD` are error codes: for a second measurement, for unloading the model.
    """

    RUNNING: ClassVar[str]
    HELD: ClassVar[str]

    def __init__(self, model: str) -> None:
        self.id = uuid.uuid4().hex
        self.model = model
        self.state = State.RUNNING
        self.reason: Reason | None = None
        self.discarded = 0
        self.spent_s = 0.0
        self.ended_at: float | None = None
        self._changed = asyncio.Event()

    @property
    @abstractmethod
    def models(self) -> Iterable[str]:
        """Ids of the measured model and its drafts."""

    @property
    @abstractmethod
    def share(self) -> float:
        """Finished part of the work, 0 to 1."""

    async def prepare(self, runner: Runner) -> None:  # noqa: B027 — a trial is planned before
        """Choose the points or texts to measure, with the model loaded."""

    @abstractmethod
    async def measure(self, runner: Runner) -> None:
        """Measure to the end. Raises OmlxError; the caller sets the final state."""

    def report(self) -> dict[str, Any]:
        """Return the state as JSON: shown while running, stored, exported; `left_s` in seconds."""
        left_s = self.left_s
        return {
            "id": self.id,
            "model": self.model,
            "state": self.state.value,
            "reason": optional_reason(self.reason),
            "left_s": None if left_s is None else round(left_s, 1),
            "discarded": self.discarded,
        }

    @abstractmethod
    def save(self, store: ResultStore, at: float, conditions: Conditions) -> None:
        """Store the results. `at` in seconds since 1970."""

    @property
    def left_s(self) -> float | None:
        """Seconds — extrapolated from `spent_s` and `share`; None before the first sample."""
        return self.spent_s / self.share - self.spent_s if self.share else None

    def enter(self, state: State) -> None:
        self.state = state
        if state.over:
            self.ended_at = time.monotonic()
        self.change()

    def change(self) -> None:
        """Wake the followers."""
        # Followers wait on the old event; those that come later get a new one.
        self._changed.set()
        self._changed = asyncio.Event()

    async def follow(self, every_s: float) -> AsyncIterator[None]:
        """Yield at once, on changes (at most once in `every_s` seconds), and at the end.

        Without changes, yields every `REPEAT_S` seconds.
        """
        while True:
            changed = self._changed
            yield
            if self.state.over:
                return
            await asyncio.sleep(every_s)
            with suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), REPEAT_S)


@dataclass(frozen=True, slots=True)
class Streams:
    """Requests run together: statistics by row, and the timed sample."""

    stats: tuple[RequestStats, ...]
    sample: Sample

    @property
    def alone(self) -> Sample:
        """The sample of a single request, timed by the engine's clock."""
        (stats,), (tokens,), sample = self.stats, self.sample.tokens, self.sample
        reasons = [gate.reason for gate in stats.gates.values() if gate.reason is not None]
        errors = [each for each in reasons if each.code == DRAFTER_FAILED]
        return Sample(
            tokens=(tokens,),
            counted=len(tokens) - 1,  # the clock starts with the first token
            seconds=stats.predicted_ms / 1000,
            proposed=stats.proposed,
            accepted=stats.accepted,
            draft_error=str(errors[0].params["detail"]) if errors else None,
            others_s=sample.others_s,
            machine_s=sample.machine_s,
        )


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs one sample at a time, on the event loop.

    `idle_s`: seconds without a user's request before a paused measurement resumes.
    """

    engine: EngineThread
    pool: Pool
    generations: GenerationService
    idle_s: float = IDLE_S

    @property
    def active_requests(self) -> int:
        """Pending loads plus requests running or waiting for a model, the measurement's too."""
        leases = sum(resident.leases for resident in self.pool.residents)
        return leases + self.pool.load_queue.requests

    async def lease(self, measurement: Measurement, draft: str | None = None) -> Lease:
        """Lease the model with a draft once no user's request is active; paused until then."""
        if self.active_requests:
            measurement.enter(State.PAUSED)
            since = time.perf_counter()
            while time.perf_counter() - since < self.idle_s:
                await asyncio.sleep(POLL_S)
                if self.active_requests:
                    since = time.perf_counter()
            measurement.enter(State.RUNNING)
        return await self.pool.lease(measurement.model, draft)

    async def run(
        self, lease: Lease, requests: Sequence[Request], on_tokens: Callable[[int], None]
    ) -> Streams | None:
        """Run `requests` together; None if a user's request interrupted.

        Takes over the lease and releases it when the engine has ended the requests. `on_tokens`
        receives the number of tokens so far. Raises the error of a failed request.
        """
        ids = [request.id for request in requests]
        events = _StreamEvents(asyncio.get_running_loop(), lease, ids)
        before = self.engine.submissions
        try:
            for request in requests:
                self.engine.submit(lease.served.id, request, events)
        except BaseException:
            lease.release()
            raise
        try:
            while not events.over:
                await events.changed()
                # The measurement's own lease counts until the requests are over.
                if self.active_requests > (0 if events.over else 1):
                    return None
                on_tokens(events.tokens)
            # Another request may have come and gone between two polls.
            if self.engine.submissions != before + len(requests):
                return None
        finally:
            for request_id in ids:
                self.engine.cancel(request_id)
        return events.streams()


class _StreamEvents:
    """The engine's sink for `requests`. Releases the lease when all have ended.

    The meter runs on the engine's thread, all else on the event loop. `tokens`: of all rows so far.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, lease: Lease, ids: Sequence[str]) -> None:
        self._loop = loop
        self._lease = lease
        self._rows = {request_id: row for row, request_id in enumerate(ids)}
        self._meter = Meter(len(ids))
        self._ends: dict[int, Finished | Failed] = {}
        self._wake = asyncio.Event()
        self.tokens = 0

    def __call__(self, events: Sequence[Event], /) -> None:
        arrived: dict[int, tuple[int, ...]] = {}
        for event in events:
            if isinstance(event, TokensCommitted):
                row = self._rows[event.request_id]
                arrived[row] = (*arrived.get(row, ()), *event.tokens)
        ended = any(isinstance(event, Finished | Failed) for event in events)
        if arrived:
            # On the engine's thread: timing must not include the event loop's delay.
            self._meter.add(arrived, ended=ended)
        with suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._take, tuple(events))

    @property
    def over(self) -> bool:
        return len(self._ends) == len(self._rows)

    async def changed(self) -> None:
        await self._wake.wait()
        self._wake.clear()

    def streams(self) -> Streams:
        """Return statistics and sample. Raises the error of a failed request."""
        stats = []
        for _, end in sorted(self._ends.items()):
            if isinstance(end, Failed):
                raise end.error
            stats.append(end.stats)
        proposed = sum(record.proposed for record in stats)
        accepted = sum(record.accepted for record in stats)
        return Streams(tuple(stats), self._meter.sample(proposed, accepted))

    def _take(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, TokensCommitted):
                self.tokens += len(event.tokens)
            elif isinstance(event, Finished | Failed):
                self._ends[self._rows[event.request_id]] = event
        if self.over:
            self._lease.release()
        self._wake.set()


def stop_bias(served: ServedModel) -> tuple[tuple[int, float], ...]:
    """Return logit biases against stop tokens."""
    return tuple((stop, STOP_BIAS) for stop in sorted(served.stop_ids))


Plan = TypeVar("Plan", bound=Measurement)


class Measurements:
    """One measurement at a time, on the event loop.

    Two at once would each pause for the other's requests as if a user had sent them.
    """

    def __init__(self, pool: Pool, runner: Runner, store: ResultStore) -> None:
        self._pool = pool
        self._runner = runner
        self._newest: dict[type[Measurement], Measurement] = {}
        self._task: asyncio.Task[None] | None = None
        self.store = store

    def newest(self, plan: type[Plan]) -> Plan | None:
        """Return the newest measurement of a plan in this process, running or finished."""
        found = self._newest.get(plan)
        return found if isinstance(found, plan) else None

    def running(self, plan: type[Plan]) -> Plan | None:
        newest = self.newest(plan)
        return newest if newest is not None and not newest.state.over else None

    def begin(self, measurement: Measurement) -> None:
        """Start a measurement. Raises Conflict while another runs."""
        for other in self._newest.values():
            if not other.state.over:
                raise Conflict(other.RUNNING, model=other.model)
        self._newest[type(measurement)] = measurement
        self._task = asyncio.create_task(self._run(measurement))

    async def stop(self, running: Measurement) -> None:
        """Cancel the running measurement; returns once stopped."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])
        if not running.state.over:  # cancelled before it began to run
            running.enter(State.CANCELLED)

    async def conditions(self, models: Iterable[str]) -> Conditions:
        """Return the current conditions of `models`; ids missing from the registry are left out."""
        registry = self._pool.registry
        entries = [registry.get(model) for model in models if model in registry]
        return await asyncio.to_thread(Conditions.now, entries)

    async def _run(self, measurement: Measurement) -> None:
        held = Reason(measurement.HELD, {"model": measurement.model})
        state = State.FAILED
        try:
            # Unloading is refused meanwhile: the model would only be loaded again.
            with self._pool.residents.hold(measurement.model, held):
                await measurement.prepare(self._runner)
                # Taken first, so that weights changed meanwhile make the result stale.
                conditions = await self.conditions(measurement.models)
                await measurement.measure(self._runner)
                save = measurement.save
                await asyncio.to_thread(save, self.store, time.time(), conditions)
            state = State.DONE
        except asyncio.CancelledError:
            state = State.CANCELLED
            raise
        except OmlxError as error:
            measurement.reason = error.reason
        except Exception as error:  # the edge of a background task
            log.exception("measurement")
            failure = unexpected(error)
            measurement.reason = failure.reason
        finally:
            measurement.enter(state)
