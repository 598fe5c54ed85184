"""Events from the engine thread: none is lost, first and last ones are delivered at once, others
together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from omlx.engine.types import Event, Finished, FinishReason, PrefillProgress
from omlx.errors import Reason
from omlx.records import RequestStats
from omlx.server.request.stream import EventDispatcher

STATS = RequestStats(1, 0, 1, 0.0, 0.0, 0.0, 0, {}, Reason("spec.off.requested"))


@dataclass
class Timer:
    work: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


class Slow:
    """An event loop that runs its callbacks when the test says so."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.timers: list[Timer] = []

    def call_soon_threadsafe(self, work: Callable[[], None]) -> None:
        self.soon.append(work)

    def call_later(self, seconds: float, work: Callable[[], None]) -> Timer:
        assert seconds > 0
        self.timers.append(Timer(work))
        return self.timers[-1]

    def run(self) -> None:
        mine, self.soon = self.soon, []
        for work in mine:
            work()

    def wait(self) -> None:
        mine, self.timers = [timer for timer in self.timers if not timer.cancelled], []
        assert len(mine) <= 1
        for timer in mine:
            timer.work()


def step(done: int) -> PrefillProgress:
    return PrefillProgress("a", done, 9)


def test_what_follows_fast_comes_together_and_an_end_at_once() -> None:
    loop, received = Slow(), list[Event]()
    dispatcher = EventDispatcher(loop)
    dispatcher.open("a", received.append)
    dispatcher([step(1)])
    loop.run()
    assert received == [step(1)], "events after a pause are delivered at once"
    for done in (2, 3, 4):
        dispatcher([step(done)])
    assert not loop.soon, "no wake-up for any of them"
    assert received == [step(1)]
    loop.wait()
    assert received == [step(1), step(2), step(3), step(4)]
    dispatcher([step(5)])
    end = Finished("a", FinishReason.STOP, STATS)
    dispatcher([end])
    loop.run()
    assert received[4:] == [step(5), end]
    loop.wait()
    assert len(received) == 6
    dispatcher([step(6)])
    loop.run()
    assert received[-1] == step(6), "the pause was long enough"


def test_a_real_loop_receives_everything_in_order() -> None:
    async def run() -> list[Event]:
        loop, received, ended = asyncio.get_running_loop(), list[Event](), asyncio.Event()
        dispatcher = EventDispatcher(loop)
        dispatcher.open(
            "a",
            lambda event: (
                received.append(event),
                ended.set() if isinstance(event, Finished) else None,
            )[0],
        )

        def engine() -> None:
            for done in range(500):
                dispatcher([step(done)])
            dispatcher([Finished("a", FinishReason.STOP, STATS)])

        await loop.run_in_executor(None, engine)
        await asyncio.wait_for(ended.wait(), 60)
        return received

    received = asyncio.run(run())
    assert received[:-1] == [step(done) for done in range(500)]
    assert isinstance(received[-1], Finished)
