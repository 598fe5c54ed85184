"""What the engine thread does next: posts of other threads, and turns of loaded models.

Pure Python. The less urgent of several models get a part of the time.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from omlx.engine.device_errors import DEVICE, kind_of
from omlx.engine.heartbeat import Heartbeat
from omlx.engine.types import HELD
from omlx.errors import EngineDead, EngineError

if TYPE_CHECKING:
    from omlx.engine.loop import EngineLoop

T = TypeVar("T")

Post: TypeAlias = Callable[[], None]


class Call(Generic[T]):
    """A post with a `future` of its result, or of its error.

    After a `question`, which only reads, a calibration continues.
    """

    def __init__(self, work: Callable[[], T], inbox: Inbox, *, question: bool) -> None:
        self.future: Future[T] = Future()
        self.question = question
        self._work = work
        self._inbox = inbox

    def __call__(self) -> None:
        """Do the work, unless cancelled or after the engine's death. Raises nothing."""
        if not self.future.set_running_or_notify_cancel():
            return
        self._inbox.call = self
        try:
            if self._inbox.failure is not None:
                raise self._inbox.failure
            resolve = partial(self.future.set_result, self._work())
        except BaseException as error:  # noqa: BLE001 — the future raises it
            DEVICE.note(error)
            if (kind := kind_of(error)) is not None:
                error = EngineError("device.error", kind=str(kind))
            resolve = partial(self.future.set_exception, error)
        with suppress(InvalidStateError):  # it hung, and the thread was abandoned
            resolve()
        self._inbox.call = None

    def fail(self, failure: EngineDead) -> None:
        """Fail a call that hangs, unless done."""
        with suppress(InvalidStateError):
            self.future.set_exception(failure)


class Inbox(queue.SimpleQueue[Post]):
    """Posts in order; any thread may put some. `call` is running; `failure`: the thread's death."""

    def __init__(self, heartbeat: Heartbeat) -> None:
        super().__init__()
        self.call: Call[Any] | None = None
        self.failure: EngineDead | None = None
        self._heartbeat = heartbeat

    def work_on(self, post: Post) -> None:
        """Run a post on the engine thread."""
        self._heartbeat.begin()
        post()
        self._heartbeat.end()

    def run_all(self) -> None:
        """Run the remaining posts, after the end of the engine thread."""
        with suppress(queue.Empty):
            while True:
                self.get_nowait()()


class Turns:
    """Seconds of steps by model, while models of different urgency have work."""

    def __init__(self) -> None:
        self._held_s: dict[int, float] = {}  # since a held model's newest step, by id
        self._step_s: dict[int, float] = {}  # of the newest step

    def due(self, busy: Sequence[EngineLoop]) -> Sequence[EngineLoop]:
        """Return the loops to step now: the most urgent, and others that are due."""
        if len(busy) < 2:
            self._held_s.clear()
            return busy
        urgent = min(loop.urgency for loop in busy)
        return [loop for loop in busy if loop.urgency == urgent or self._may_step(loop)]

    def stepped(self, loop: EngineLoop, busy: Sequence[EngineLoop], seconds: float) -> None:
        """Record a step of `loop` beside other `busy` loops."""
        self._step_s[id(loop)], self._held_s[id(loop)] = seconds, 0.0
        for other in busy:
            if other is not loop:
                self._held_s[id(other)] = self._held_s.get(id(other), 0.0) + seconds

    def forget(self, loop: EngineLoop) -> None:
        """Drop the times of a model that is unloaded."""
        self._held_s.pop(id(loop), None)
        self._step_s.pop(id(loop), None)

    def _may_step(self, loop: EngineLoop) -> bool:
        held_s = self._held_s.get(id(loop), 0.0)
        return loop.frees_memory or held_s >= HELD * self._step_s.get(id(loop), held_s)
