"""A stream fed by a script, and the dispatcher that brings it the events of the engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper

from omlx.engine.types import (
    Event,
    EventSink,
    Failed,
    Finished,
    FinishReason,
    PrefillProgress,
    Request,
    Sampling,
    TokenLogprob,
    TokensCommitted,
)
from omlx.errors import EngineDead, EngineError, Reason, TimedOut
from omlx.models.pool.served import Lease, ServedModel
from omlx.records import DrafterStats, RequestStats
from omlx.server.request.activity import Activity
from omlx.server.request.engine_requests import ChoiceRequest
from omlx.server.request.stream import EventDispatcher, GenerationStream
from omlx.server.workers import TEXTS, Workers
from omlx.telemetry.metrics import Gauges, Metrics
from omlx.text.constraint import Constraint
from omlx.text.events import Finish, TextDelta
from omlx.text.output import OutputSpec
from omlx.text.tokens import TokenBytes
from tests.server.running import PATIENCE_S
from tests.text.tokenizers import decode_byte_level

STATS = RequestStats(1, 0, 1, 0.0, 0.0, 0.0, 0, {}, Reason("spec.off.requested"))


class Scripted:
    """An engine that sends the events of a script."""

    def __init__(self) -> None:
        self.failure: EngineDead | None = None
        self.cancelled: list[str] = []
        self._sink: EventSink | None = None

    def submit(self, model: str, request: Request, sink: EventSink) -> None:
        self._sink = sink

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)

    def say(self, *events: Event) -> None:
        assert self._sink is not None
        self._sink(events)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TokenizerWrapper:
    return decode_byte_level(tmp_path_factory.mktemp("tokenizer"))


def nothing() -> Gauges:
    return Gauges(True, {}, {}, {})


class Setting:
    """A stream of `n` choices without events. `released` counts releases of its lease."""

    def __init__(self, tokenizer: TokenizerWrapper, n: int = 1) -> None:
        self.released = 0
        self.engine = Scripted()
        served = ServedModel(
            "m", tokenizer, TokenBytes(tokenizer), 300, 100, frozenset(), {}, None, None
        )
        lease = Lease(served, self._count)
        self.stream = GenerationStream(
            self.engine, EventDispatcher(), lease, "id", 7, Activity(Metrics(nothing))
        )
        for choice in range(n):
            request = Request(f"id-{choice}", (1,), Sampling(choice=choice))
            spec = OutputSpec(stops=("ab",))
            self.stream.submit(ChoiceRequest(request, spec, Constraint()), choice, request)

    def _count(self) -> None:
        self.released += 1


def committed(choice: int, *tokens: int) -> TokensCommitted:
    return TokensCommitted(f"id-{choice}", tokens, (False,) * len(tokens))


def finished(choice: int, reason: FinishReason = FinishReason.STOP) -> Finished:
    return Finished(f"id-{choice}", reason, STATS)


def test_all_choices_arrive_in_order_and_the_lease_ends_once(tokenizer: TokenizerWrapper) -> None:
    async def run() -> tuple[list[tuple[int, type]], int]:
        setting = Setting(tokenizer, n=2)
        x = tokenizer.encode("x")
        setting.engine.say(committed(0, *x), committed(1, *x), finished(1), finished(0))
        events = []
        async for batch in setting.stream.batches():
            events += batch
        setting.stream.close()
        setting.stream.close()
        return [(each.choice, type(each.event)) for each in events], setting.released

    assert asyncio.run(run()) == ([(0, TextDelta), (1, TextDelta), (1, Finish), (0, Finish)], 1)


def test_tokens_that_come_together_are_told_together(tokenizer: TokenizerWrapper) -> None:
    x, y = tokenizer.encode("x")[0], tokenizer.encode("y")[0]

    def scored(choice: int, token: int) -> TokensCommitted:
        return replace(committed(choice, token), logprobs=(TokenLogprob(token, -1.0, ()),))

    async def run() -> list[tuple[int, str, list[int]]]:
        setting = Setting(tokenizer, n=2)
        setting.engine.say(scored(0, x), scored(1, x), scored(0, y), finished(0), scored(1, x))
        batch = await anext(setting.stream.batches())
        setting.stream.close()
        events = [(each.choice, each.event) for each in batch]
        return [
            (choice, event.text, [entry.token for entry in event.logprobs])
            for choice, event in events
            if isinstance(event, TextDelta)
        ]

    assert asyncio.run(run()) == [(0, "xy", [x, y]), (1, "xx", [x, x])]


def test_progress_and_held_back_text_do_not_count_as_output(tokenizer: TokenizerWrapper) -> None:
    async def run() -> list[Sequence[object]]:
        setting = Setting(tokenizer)
        batches = setting.stream.batches(idle_s=0.0)
        seen: list[Sequence[object]] = [await anext(batches)]
        for event in (PrefillProgress("id-0", 1, 9), committed(0, *tokenizer.encode("a"))):
            setting.engine.say(event)
            await asyncio.sleep(0)
            seen.append(await anext(batches))
        await batches.aclose()
        return seen

    assert asyncio.run(run()) == [[], [], []]


def test_what_failed_is_raised_after_what_was_said(tokenizer: TokenizerWrapper) -> None:
    async def run() -> tuple[int, list[str], int]:
        setting = Setting(tokenizer, n=2)
        setting.engine.say(
            committed(0, *tokenizer.encode("x")),
            Failed("id-0", EngineError("engine.step", detail="?")),
        )
        batches = setting.stream.batches()
        count = len(await anext(batches))
        with pytest.raises(EngineError):
            await anext(batches)
        setting.stream.close()
        setting.stream.close()
        return count, setting.engine.cancelled, setting.released

    count, cancelled, released = asyncio.run(run())
    assert (count, set(cancelled), released) == (1, {"id-1"}, 0)


def test_a_stream_ends_at_its_time_limit_behind_what_was_said(tokenizer: TokenizerWrapper) -> None:
    async def run() -> tuple[int, list[str]]:
        setting = Setting(tokenizer)
        setting.engine.say(committed(0, *tokenizer.encode("x")))
        setting.stream.stop_after(0.0, TimedOut("request.timeout", seconds=0))
        batches = setting.stream.batches()
        count = len(await anext(batches))
        with pytest.raises(TimedOut):
            await anext(batches)
        setting.stream.close()
        return count, setting.engine.cancelled

    assert asyncio.run(run()) == (1, ["id-0", "id-0"])


def test_a_time_limit_ends_with_the_stream(tokenizer: TokenizerWrapper) -> None:
    async def run() -> list[str]:
        setting = Setting(tokenizer)
        setting.stream.stop_after(0.0, TimedOut("request.timeout", seconds=0))
        setting.stream.close()
        await asyncio.sleep(0)
        return setting.engine.cancelled

    assert asyncio.run(run()) == ["id-0"]


def test_the_lease_is_held_until_the_engine_has_ended(tokenizer: TokenizerWrapper) -> None:
    async def run() -> list[int]:
        setting = Setting(tokenizer, n=2)
        setting.stream.close()
        seen = [setting.released]
        for choice in range(2):
            setting.engine.say(finished(choice, FinishReason.CANCELLED))
            await asyncio.sleep(0)
            seen.append(setting.released)
        return seen

    assert asyncio.run(run()) == [0, 0, 1]


def test_started_raises_a_refusal_before_any_byte_is_sent(tokenizer: TokenizerWrapper) -> None:
    async def run(event: Event) -> None:
        setting = Setting(tokenizer)
        setting.engine.say(event)
        await setting.stream.started(60)

    with pytest.raises(EngineError):
        asyncio.run(run(Failed("id-0", EngineError("engine.step", detail="?"))))
    asyncio.run(run(PrefillProgress("id-0", 1, 2)))


def test_an_end_that_cannot_be_counted_arrives(
    tokenizer: TokenizerWrapper, caplog: pytest.LogCaptureFixture
) -> None:
    """Statistics that no counter accepts are logged; the answer ends, and so does its lease."""
    refused = replace(STATS, drafters={"draft": DrafterStats(draft_ms=-1.0)})

    async def run() -> int:
        setting = Setting(tokenizer)
        setting.engine.say(Finished("id-0", FinishReason.STOP, refused))
        async for _ in setting.stream.batches():
            pass
        setting.stream.close()
        return setting.released

    assert asyncio.run(asyncio.wait_for(run(), 30)) == 1
    assert "not counted" in caplog.text


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
