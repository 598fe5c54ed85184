"""The engine thread: it owns every mlx call of every loaded model. Other threads hand it work and hear events.

Loops take turns, a step each. Work given by `call` (loading a model) runs between steps. While there is
none, and nobody waits for an answer, it may measure what passes cost. If the thread dies, every open request hears of
it and `failure` says why.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

import mlx.core as mx

from omlx.engine.calibration import Calibration
from omlx.engine.types import (
    CalibrationState,
    Event,
    EventSink,
    Failed,
    Finished,
    Load,
    ModelSnapshot,
    Request,
)
from omlx.errors import EngineDead, EngineError, NotFound, OmlxError
from omlx.records import PrefixStats

if TYPE_CHECKING:
    from omlx.engine.loop import EngineLoop

T = TypeVar("T")

QUIET_S: Final = 0.25
"""Idle is who had nothing to do for so long: what comes in a row, such as more of a model to read, is not held up."""

log = logging.getLogger("omlx.engine")


class EngineThread:
    """`calibrates`: it measures what passes of its models cost while it is idle."""

    def __init__(self, *, calibrates: bool = False) -> None:
        self._calibrates = calibrates
        self._failure: EngineDead | None = None
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._loops: dict[str, EngineLoop] = {}
        self._calibrations: dict[str, Calibration] = {}
        self._sinks: dict[str, EventSink] = {}
        self._submissions = 0
        self._stopping = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="omlx-engine", daemon=True)

    @property
    def failure(self) -> EngineDead | None:
        """Why the thread is gone, or None while it runs."""
        return self._failure

    @property
    def submissions(self) -> int:
        """How many requests have come so far, to whichever model."""
        return self._submissions

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its current step; open requests fail. Returns when it has ended."""
        self._inbox.put(self._stop)
        self._thread.join()

    def call(self, work: Callable[[], T]) -> Future[T]:
        """Run `work` on the engine thread between steps. Its exception goes to the future, not to the thread."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                if self.failure is not None:
                    raise self.failure
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 — whatever it was belongs to whoever asked
                future.set_exception(error)

        self._post(run)
        return future

    def attach(self, name: str, loop: EngineLoop) -> None:
        """Serve a loaded model under `name`, in place of the one that has it. From inside `call`."""
        if name in self._loops:
            self.detach(name)
        self._loops[name] = loop
        if self._calibrates:
            self._calibrations[name] = Calibration(name, loop)
        loop.register()

    def detach(self, name: str) -> None:
        """Forget a model. From inside `call`; it has no open requests."""
        self._calibrations.pop(name, None)
        self._loops.pop(name).unregister()

    def submit(self, model: str, request: Request, sink: EventSink) -> None:
        """Queue a request; `sink` hears of it, on the engine thread. Any thread may call.

        Raises EngineDead at once if the thread is gone; a full queue, a too long prompt, or an id that is open
        is told by a Failed event.
        """

        def accept() -> None:
            if (
                request.id in self._sinks
            ):  # who asked first goes on hearing of its own request, and of no other
                sink([Failed(request.id, EngineError("engine.duplicate", id=request.id))])
                return
            self._sinks[request.id] = sink
            try:
                if self.failure is not None:
                    raise self.failure
                if model not in self._loops:  # unloaded since it was looked up
                    raise NotFound("model.not_found", param="model", model=model)
                self._loops[model].submit(request)
            except OmlxError as error:
                self._publish([Failed(request.id, error)])

        self._submissions += 1
        self._post(accept)

    def cancel(self, request_id: str) -> None:
        """End a request; any thread may call. An id that is not open is ignored."""

        def end() -> None:
            if request_id in self._sinks:
                for loop in self._loops.values():
                    loop.cancel(request_id)

        if self.failure is None:
            self._inbox.put(end)

    def load_of(self, model: str) -> Load:
        loop = self._loops.get(model)
        return loop.load if loop else Load(0, 0, 0)

    def prefix_of(self, model: str) -> PrefixStats | None:
        """What is kept of a model's prefixes; any thread may call."""
        loop = self._loops.get(model)
        return loop.prefix_stats if loop else None

    def snapshot(self, model: str) -> Future[ModelSnapshot | None]:
        """What there is to say of a model, after the current step; None if it is not loaded. Raises EngineDead."""

        def tell() -> ModelSnapshot | None:
            if (loop := self._loops.get(model)) is None:
                return None
            calibration = self._calibrations.get(model)
            return replace(
                loop.snapshot(),
                calibration=calibration.state if calibration else CalibrationState.OFF,
            )

        return self.call(tell)

    def probe_prefix(self, model: str, tokens: Sequence[int]) -> Future[int | None]:
        """How many tokens of a prompt the model has kept; None if it is not loaded. Raises EngineDead."""
        return self.call(
            lambda: (
                loop.cached_prefix(tokens) if (loop := self._loops.get(model)) is not None else None
            )
        )

    def with_loop(self, model: str, work: Callable[[EngineLoop], T]) -> Future[T]:
        """Run `work` with a model that is leased, between two steps. Raises EngineDead."""
        return self.call(lambda: work(self._loops[model]))

    def clear_prefixes(self, model: str) -> Future[None]:
        """Forget the prefixes of a model, if it is loaded. Raises EngineDead."""

        def clear() -> None:
            if (loop := self._loops.get(model)) is not None:
                loop.clear_prefixes()

        return self.call(clear)

    def _post(self, work: Callable[[], None]) -> None:
        if self.failure is not None:
            raise self.failure
        self._inbox.put(work)
        if self._ended.is_set():  # it died in between; nobody else will look at the inbox again
            self._drain()

    def _run(self) -> None:
        try:
            if (
                recommended := mx.device_info().get("max_recommended_working_set_size")
            ) is not None:
                mx.set_wired_limit(int(recommended))
            while not self._stopping:
                self._take_in()
                self._step()
            self._die(EngineDead("engine.stopped"))
        except BaseException as error:  # the outer edge: nobody may wait for a thread that is gone
            log.critical("the engine thread died", exc_info=error)
            self._die(EngineDead("engine.dead", detail=f"{type(error).__name__}: {error}"))

    def _step(self) -> None:
        """One step of every loop that has work. No name holds a loop after it: a model may have to go."""
        busy = [loop for loop in self._loops.values() if loop.has_work]
        for loop in busy:
            self._publish(loop.step())
            if len(busy) > 1:
                loop.reset_timing()

    def _take_in(self) -> None:
        """Run what was posted; wait for something if no loop has work."""
        if not any(loop.has_work for loop in self._loops.values()):
            self._wait()()
        elif self._inbox.empty():
            return
        for _ in range(
            self._inbox.qsize()
        ):  # what comes meanwhile, such as more of a model to read, waits for a step
            self._inbox.get()()
        for loop in self._loops.values():
            loop.reset_timing()

    def _wait(self) -> Callable[[], None]:
        """What is posted next. While it does not come, and nobody waits for an answer, measure."""
        if not self._sinks and any(
            each.state is CalibrationState.PENDING for each in self._calibrations.values()
        ):
            try:
                return self._inbox.get(timeout=QUIET_S)
            except queue.Empty:
                self._calibrate()
        return self._inbox.get()

    def _calibrate(self) -> None:
        """Measure until all is known or something is posted. No name holds a loop after it."""
        for calibration in self._calibrations.values():
            calibration.run(lambda: not self._inbox.empty())
        if self._inbox.empty():
            mx.clear_cache()

    def _drain(self) -> None:
        while True:
            try:
                self._inbox.get_nowait()()
            except queue.Empty:
                return

    def _publish(self, events: list[Event]) -> None:
        """One call a sink and step. A sink that raises loses its events, nobody else does."""
        by_sink: defaultdict[EventSink, list[Event]] = defaultdict(list)
        for event in events:
            if (sink := self._sinks.get(event.request_id)) is not None:
                by_sink[sink].append(event)
            if isinstance(event, Finished | Failed):
                self._sinks.pop(event.request_id, None)
        for sink, batch in by_sink.items():
            try:
                sink(batch)
            except Exception:  # the edge to the HTTP side: its event loop may be closed
                log.exception("a listener failed; its events are lost")

    def _die(self, failure: EngineDead) -> None:
        self._failure = failure
        self._ended.set()
        self._drain()
        self._publish([Failed(request_id, failure) for request_id in self._sinks])
        self._loops.clear()
        self._calibrations.clear()

    def _stop(self) -> None:
        self._stopping = True
