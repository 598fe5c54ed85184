"""Inbox of the engine thread: work that other threads post, and wait for."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

from omlx.engine.device_errors import DEVICE, kind_of
from omlx.engine.heartbeat import Heartbeat
from omlx.errors import EngineDead, EngineError

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
