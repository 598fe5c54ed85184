"""Engine threads of tests: loops attached to them, and sinks that can be waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

from omlx.engine.loop import EngineLoop
from omlx.engine.thread import EngineThread
from omlx.engine.types import Event, Failed, Finished, Request, TokensCommitted
from omlx.errors import OmlxError

PATIENCE_S = 60


class Listener:
    """A sink that can be waited for."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.threads: set[str] = set()
        self._ended = threading.Event()
        self._begun = threading.Event()

    def __call__(self, events: Sequence[Event]) -> None:
        self.threads.add(threading.current_thread().name)
        self.events += events
        self._begun.set()
        if isinstance(events[-1], Finished | Failed):
            self._ended.set()

    def begun(self) -> Listener:
        assert self._begun.wait(PATIENCE_S)
        return self

    def last(self) -> Event:
        assert self._ended.wait(PATIENCE_S), "the request never ended"
        return self.events[-1]

    def finished(self) -> Finished:
        last = self.last()
        assert isinstance(last, Finished), last
        return last

    def failed(self) -> OmlxError:
        """Wait for the error of the request."""
        last = self.last()
        assert isinstance(last, Failed), last
        return last.error

    @property
    def tokens(self) -> list[int]:
        committed = [event for event in self.events if isinstance(event, TokensCommitted)]
        return list(chain.from_iterable(event.tokens for event in committed))


@contextmanager
def started(**more: Any) -> Iterator[EngineThread]:
    thread = EngineThread(**more)
    thread.start()
    try:
        yield thread
    finally:
        thread.stop()


def attach(thread: EngineThread, build: Callable[[], EngineLoop], name: str = "m") -> EngineLoop:
    """Attach a loop; it is made on the engine thread, as all arrays must be."""

    def make() -> EngineLoop:
        loop = build()
        thread.attach(name, loop)
        return loop

    return thread.call(make).result(PATIENCE_S)


def submit(thread: EngineThread, of: Request, model: str = "m") -> Listener:
    listener = Listener()
    thread.submit(model, of, listener)
    return listener
