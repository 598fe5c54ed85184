"""The engine thread: owns every mlx call of every model; other threads post work, receive events.

Loops take turns, one step each; the less urgent get a part of the time (`Turns`). Work posted by
`call`, such as loading a model, runs between steps. While there is no work and no open request,
calibrations may run. If the thread dies, every open request fails, and `failure` says why.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from omlx.engine.calibration import Calibration
from omlx.engine.device.gpu import KeepWarm, release_buffers
from omlx.engine.device_errors import DEVICE, isolate
from omlx.engine.piece import ModelRoom
from omlx.engine.types import (
    CalibrationState,
    Event,
    EventSink,
    Failed,
    Finished,
    ModelSnapshot,
    PromptForecast,
    Request,
    RequestCounts,
)
from omlx.engine.work import Call, Heartbeat, Inbox, Post, Turns
from omlx.errors import EngineDead, EngineError, OmlxError, Overloaded
from omlx.records import PrefixStats

if TYPE_CHECKING:
    from omlx.engine.loop import EngineLoop, ModelForTexts


log = logging.getLogger("omlx.engine")


class OpenRequests:
    """Sinks by request id. `background` has the requests that the next one cancels."""

    def __init__(self) -> None:
        self._sinks: dict[str, EventSink] = {}
        self.background: set[str] = set()

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._sinks

    def __bool__(self) -> bool:
        return bool(self._sinks)

    @property
    def count(self) -> int:
        """Requests other than those in the background."""
        return len(self._sinks) - len(self.background)

    def add(self, request: Request, sink: EventSink) -> None:
        self._sinks[request.id] = sink
        if request.background:
            self.background.add(request.id)

    def publish(self, events: Sequence[Event]) -> None:
        """Call each sink once with its events. A sink that raises loses its events only."""
        by_sink: defaultdict[EventSink, list[Event]] = defaultdict(list)
        for event in events:
            if (sink := self._sinks.get(event.request_id)) is not None:
                by_sink[sink].append(event)
            if isinstance(event, Finished | Failed):
                self._sinks.pop(event.request_id, None)
                self.background.discard(event.request_id)
        for sink, batch in by_sink.items():
            try:
                sink(batch)
            except Exception:  # the edge to the HTTP side: its event loop may be closed
                log.exception("a listener failed; its events are lost")

    def fail(self, error: OmlxError) -> list[str]:
        """End every request with an error. Return their ids."""
        failed = list(self._sinks)
        self.publish([Failed(request_id, error) for request_id in failed])
        return failed


T = TypeVar("T")

IDLE_SECONDS: Final = 0.25
"""Seconds without work before calibration — the next chunk of a load must not wait for it."""


class EngineThread:
    """Runs the loops of all loaded models. `calibrates`: measure their passes while idle."""

    def __init__(self, *, calibrates: bool = False, warm: KeepWarm | None = None) -> None:
        self.heartbeat = Heartbeat()
        self._warm = warm or KeepWarm()
        self._inbox = Inbox(self.heartbeat)
        self._loops: dict[str, EngineLoop] = {}
        self._turns = Turns()
        self._calibrates = calibrates
        self._calibrations: dict[str, Calibration] = {}  # by model
        self._open = OpenRequests()
        self.submissions = 0  # requests so far, for any model
        self._stopping = False
        self._ended = threading.Event()
        self._dying = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="omlx-engine", daemon=True)

    @property
    def failure(self) -> EngineDead | None:
        """Why the thread has ended; None while it runs."""
        return self._inbox.failure

    def start(self) -> None:
        DEVICE.reset()
        self._thread.start()

    def stop(self, timeout_s: float | None = None) -> None:
        """End the thread after its current step; open requests fail. Return when it has ended, or
        after `timeout_s`: a step may never end.
        """
        self._inbox.put(self._stop)
        self._thread.join(timeout_s)

    def fail_open(self, failure: EngineDead) -> None:
        """Fail every open request after the current step. Any thread may call."""

        def fail() -> None:
            for request_id in self._open.fail(failure):
                self._cancel(request_id)

        if self.failure is None:
            self._inbox.put(fail)

    def call(self, work: Callable[[], T], *, question: bool = False) -> Future[T]:
        """Run `work` on the engine thread between steps; a `question` changes nothing.

        The future raises what it does, or EngineDead.
        """
        call = Call(work, self._inbox, question=question)
        self._post(call)
        return call.future

    def attach(self, name: str, loop: EngineLoop) -> None:
        """Serve a loaded model, in place of the one of that name. Requires the engine thread."""
        if name in self._loops:
            self.detach(name)
        self._loops[name] = loop
        if self._calibrates and loop.limits.generates:
            self._calibrations[name] = Calibration(name, loop)
        loop.register()

    def detach(self, name: str) -> None:
        """Stop serving a model without open requests. Requires the engine thread."""
        self._calibrations.pop(name, None)
        loop = self._loops.pop(name)
        self._turns.forget(loop)
        loop.unregister()

    def submit(self, model: str, request: Request, sink: EventSink) -> None:
        """Queue a request; `sink` receives its events on the engine thread.

        Raises EngineDead. Every other error is a Failed event: a full queue, a prompt that does not
        fit, an open id.
        """

        def accept() -> None:
            if request.id in self._open:  # the events of the open request stay with its own sink
                sink([Failed(request.id, EngineError("engine.duplicate", id=request.id))])
                return
            if request.background and self._open:
                sink([Failed(request.id, Overloaded("engine.busy"))])
                return
            for other in self._open.background:
                self._cancel(other)
            self._open.add(request, sink)
            try:
                if self.failure is not None:
                    raise self.failure
                if model not in self._loops:  # unloaded since it was looked up
                    raise Overloaded("model.unloaded", param="model", model=model)
                self._loops[model].submit(request)
            except OmlxError as error:
                self._open.publish([Failed(request.id, error)])

        self.submissions += 1
        self._post(accept)

    def cancel(self, request_id: str) -> None:
        """End a request. Any thread may call; an id that is not open is ignored."""

        def end() -> None:
            if request_id in self._open:
                self._cancel(request_id)

        if self.failure is None:
            self._inbox.put(end)

    def _cancel(self, request_id: str) -> None:
        for loop in self._loops.values():
            loop.cancel(request_id)

    @property
    def open_count(self) -> int:
        """Requests in progress, those in the background aside. Any thread may read."""
        return self._open.count

    def request_counts(self, model: str) -> RequestCounts:
        """Return how many requests of a model are open. Any thread may call."""
        loop = self._loops.get(model)
        return RequestCounts(0, 0, 0) if loop is None else loop.request_counts

    def prefix_of(self, model: str) -> PrefixStats | None:
        """Return the statistics of a model's prefix cache; None if it is not loaded."""
        loop = self._loops.get(model)
        return None if loop is None else loop.prefix_stats

    def snapshot(self, model: str) -> Future[ModelSnapshot | None]:
        """Return a model's state after the current step; None: not loaded. Raises EngineDead."""

        def take(loop: EngineLoop) -> ModelSnapshot:
            calibration = self._calibrations.get(model)
            state = CalibrationState.OFF if calibration is None else calibration.state
            return replace(loop.snapshot(), calibration=state)

        return self._ask(model, take)

    def forecast(self, model: str, tokens: Sequence[int]) -> Future[PromptForecast | None]:
        """Estimate what a prompt would take now; None: not loaded. Raises EngineDead."""
        return self._ask(model, lambda loop: loop.forecast(tokens))

    def read_text(self, model: str, read: Callable[[ModelForTexts], T]) -> Future[T]:
        """Have a leased model read a part of a text between two steps. Raises EngineDead."""
        return self.call(lambda: read(self._loops[model].for_texts))

    def room(self, model: str) -> Future[ModelRoom]:
        """Return what room a leased model has. Raises EngineDead."""
        return self.call(lambda: self._loops[model].room(), question=True)

    def may_prefill(self, model: str, request: Request, least: int = 1) -> Future[bool]:
        """Return whether a prompt's stable prefix may be computed. Raises EngineDead.

        A leased model lacks at least `least` tokens, and has room for them without an eviction.
        """
        return self.call(lambda: self._loops[model].may_prefill(request, least), question=True)

    def clear_prefixes(self, model: str) -> Future[None]:
        """End work in the background, and evict a model's prefixes. Raises EngineDead."""

        def clear() -> None:
            if (loop := self._loops.get(model)) is not None:
                for other in self._open.background:
                    self._cancel(other)
                self._open.publish(loop.end_cancelled())
                loop.clear_prefixes()

        return self.call(clear)

    def _ask(self, model: str, answer: Callable[[EngineLoop], T]) -> Future[T | None]:
        """Have a model answer between two steps; None if it is not loaded."""

        def ask() -> T | None:
            loop = self._loops.get(model)
            return None if loop is None else answer(loop)

        return self.call(ask, question=True)

    def _post(self, work: Callable[[], None]) -> None:
        if self.failure is not None:
            raise self.failure
        self._inbox.put(work)
        if self._ended.is_set():  # the thread died after the check: it will not run this
            self._inbox.run_all()

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._turn()
                if DEVICE.lost is not None:
                    raise DEVICE.lost
            self.heartbeat.end()
            self._die(EngineDead("engine.stopped"))
        except BaseException as error:  # the outer edge: no request may wait for a dead thread
            log.critical("the engine thread died", exc_info=error)
            failure = EngineDead("engine.dead", detail=type(error).__name__)
            self._die(error if isinstance(error, EngineDead) else failure)

    def _turn(self) -> None:
        """Run posted work, then step loops that have work. Keeps no reference to a loop."""
        busy = [loop for loop in self._loops.values() if loop.has_work]
        if not busy or not self._inbox.empty():
            self._run_posted(wait=not busy)
            busy = [loop for loop in self._loops.values() if loop.has_work]
        for loop in self._turns.due(busy):
            self._warm.worked()
            self.heartbeat.begin(loop)
            begun = time.perf_counter()
            if events := loop.step():
                self._open.publish(events)
            if len(busy) > 1:
                self._turns.stepped(loop, busy, time.perf_counter() - begun)
                loop.reset_timing()

    def _run_posted(self, *, wait: bool) -> None:
        if wait:
            self._inbox.work_on(self._next_post())
        # Work posted meanwhile, such as the next chunk of a model being loaded, waits for a step.
        for _ in range(self._inbox.qsize()):
            self._inbox.work_on(self._inbox.get())
        for loop in self._loops.values():
            loop.reset_timing()

    def _next_post(self) -> Callable[[], None]:
        """Wait for a post. Calibrate meanwhile, unless a request is open."""
        self.heartbeat.end()
        calibrations = self._calibrations.values()
        if not self._open and any(calibration.pending for calibration in calibrations):
            try:
                return self._inbox.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                if (post := self._calibrate()) is not None:
                    return post
        return self._warm.next_post(self._inbox)

    def _calibrate(self) -> Post | None:
        """Calibrate every model until done or until work is posted. Return the latter."""
        work: list[Post] = []

        def interrupted(loop: EngineLoop) -> bool:
            while not (work or self._inbox.empty()):
                post = self._inbox.get()
                if isinstance(post, Call) and post.question:
                    self._inbox.work_on(post)
                else:
                    work.append(post)
            self.heartbeat.begin(loop)  # behind questions, which have beats of their own
            return bool(work)

        for calibration in self._calibrations.values():
            calibration.run(partial(interrupted, calibration.loop))
        self.heartbeat.end()
        if work:
            return work[0]
        with isolate():  # an error of the device condemns the steps of all loops
            release_buffers()
        return None

    def abandon(self, failure: EngineDead) -> None:
        """Fail every open request from another thread: the engine's may wait for good.

        The server ends the process then. A thread that comes back stops after its turn.
        """
        self._stopping = True
        self._die(failure)

    def _die(self, failure: EngineDead) -> None:
        with self._dying:
            if self.failure is not None:
                return
            self._inbox.failure = failure
        self._ended.set()
        if self._inbox.call is not None:
            self._inbox.call.fail(failure)
        self._inbox.run_all()
        self._open.fail(failure)
        # An abandoned thread may iterate over the old ones.
        self._loops, self._calibrations = {}, {}

    def _stop(self) -> None:
        self._stopping = True
