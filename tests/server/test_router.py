"""What crosses from the engine's thread: nothing is lost, ends and first words come at once, short steps together."""

from __future__ import annotations

import asyncio

from omlx.engine.types import Event, Finished, FinishReason, PrefillProgress, Reason, RequestStats
from omlx.server.router import Router

STATS = RequestStats(1, 0, 1, 0.0, 0.0, 0.0, 0, {}, Reason("spec.off.requested"))


class Slow:
    """A loop whose clock stands still and that runs what it is told when the test says so."""

    def __init__(self) -> None:
        self.soon: list[object] = []
        self.later: list[object] = []

    def time(self) -> float:
        return 100.0

    def call_soon_threadsafe(self, work: object) -> None:
        self.soon.append(work)

    def call_later(self, seconds: float, work: object) -> None:
        assert seconds > 0
        self.later.append(work)

    def run(self, which: str) -> None:
        works, mine = getattr(self, which), []
        mine[:], works[:] = works, []
        for work in mine:
            work()


def step(done: int) -> PrefillProgress:
    return PrefillProgress("a", done, 9)


def test_what_follows_fast_comes_together_and_an_end_at_once() -> None:
    loop, heard = Slow(), list[Event]()
    router = Router(loop)  # type: ignore[arg-type]
    router.open("a", heard.append)
    router([step(1)])
    loop.run("soon")
    assert heard == [step(1)], "what comes after a pause is not held"
    for done in (2, 3, 4):
        router([step(done)])
    assert len(loop.soon) == 1, "one wake-up for them all"
    loop.run("soon")
    assert heard == [step(1)]
    loop.run("later")
    assert heard == [step(1), step(2), step(3), step(4)]
    router([step(5)])
    loop.run("soon")
    end = Finished("a", FinishReason.STOP, STATS)
    router([end])
    loop.run("soon")
    assert heard[4:] == [step(5), end]
    loop.run("later")
    assert len(heard) == 6


def test_a_real_loop_hears_everything_in_order() -> None:
    async def run() -> list[Event]:
        loop, heard, ended = asyncio.get_running_loop(), list[Event](), asyncio.Event()
        router = Router(loop)
        router.open("a", lambda event: (heard.append(event), ended.set() if isinstance(event, Finished) else None)[0])

        def engine() -> None:
            for done in range(500):
                router([step(done)])
            router([Finished("a", FinishReason.STOP, STATS)])

        await loop.run_in_executor(None, engine)
        await asyncio.wait_for(ended.wait(), 60)
        return heard

    heard = asyncio.run(run())
    assert heard[:-1] == [step(done) for done in range(500)]
    assert isinstance(heard[-1], Finished)
