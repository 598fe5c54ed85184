"""Events from the engine thread: none is lost, first and last ones are delivered at once, others
together."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from omlx.engine.types import Event, Finished, FinishReason, PrefillProgress
from omlx.errors import Reason
from omlx.records import RequestStats
from omlx.server.request.stream import EventDispatcher
from omlx.server.workers import TEXTS, Workers
from tests.server.running import PATIENCE_S

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


class Work:
    """Work that lasts until `finish`."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.finish = threading.Event()

    def __call__(self) -> str:
        self.started.set()
        assert self.finish.wait(PATIENCE_S)
        return "done"


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0)


def test_lanes_do_not_wait_for_each_other_and_each_has_one_worker() -> None:
    async def run() -> None:
        workers, first, second, other = Workers(), Work(), Work(), Work()
        tasks = [
            asyncio.create_task(workers.run(lane, work))
            for lane, work in (("a", first), ("a", second), ("b", other))
        ]
        await until(lambda: first.started.is_set() and other.started.is_set())
        other.finish.set()
        assert await tasks[2] == "done"
        assert not second.started.is_set()
        first.finish.set()
        await until(second.started.is_set)
        second.finish.set()
        assert await asyncio.gather(*tasks) == ["done"] * 3
        workers.shut_down()

    asyncio.run(run())


def test_work_whose_caller_is_gone_is_dropped_or_ends_before_the_next() -> None:
    async def run() -> None:
        workers, running, waiting, last = Workers(), Work(), Work(), Work()
        tasks = [asyncio.create_task(workers.run("a", work)) for work in (running, waiting)]
        await until(running.started.is_set)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        after = asyncio.create_task(workers.run("a", last))
        await asyncio.sleep(0)
        assert not last.started.is_set()
        for work in (running, last):
            work.finish.set()
        assert await after == "done"
        assert not waiting.started.is_set()
        workers.shut_down()

    asyncio.run(run())


def test_lanes_of_texts_leave_threads_to_others_and_nothing_waits_behind_the_end() -> None:
    async def run() -> None:
        workers, works, image = Workers(), [Work() for _ in range(TEXTS + 1)], Work()
        tasks = [asyncio.create_task(workers.run(at, work)) for at, work in enumerate(works)]
        await until(lambda: sum(work.started.is_set() for work in works) == TEXTS)
        image.finish.set()
        assert await workers.run("images", image, at_once=2) == "done"
        assert not works[-1].started.is_set()
        for work in works:
            work.finish.set()
        await asyncio.gather(*tasks)
        workers.shut_down()
        for _ in range(TEXTS + 1):
            with pytest.raises(RuntimeError):
                await asyncio.wait_for(workers.run("a", image), PATIENCE_S)

    asyncio.run(run())


def test_an_error_of_work_reaches_its_caller() -> None:
    async def run() -> None:
        workers = Workers()
        with pytest.raises(ZeroDivisionError):
            await workers.run("a", lambda: 1 // 0)
        assert await workers.run("a", lambda: 1) == 1
        workers.shut_down()

    asyncio.run(run())
