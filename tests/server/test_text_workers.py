from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from omlx.server.request.generation import TextWorkers
from tests.server.running import PATIENCE_S


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
        workers, first, second, other = TextWorkers(), Work(), Work(), Work()
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
        workers, running, waiting, last = TextWorkers(), Work(), Work(), Work()
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


def test_an_error_of_work_reaches_its_caller() -> None:
    async def run() -> None:
        workers = TextWorkers()
        with pytest.raises(ZeroDivisionError):
            await workers.run("a", lambda: 1 // 0)
        assert await workers.run("a", lambda: 1) == 1
        workers.shut_down()

    asyncio.run(run())
