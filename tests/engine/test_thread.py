"""The engine thread: events arrive, work runs between steps, and its end fails open requests."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from itertools import chain

import pytest

from omlx.engine.build import build_loop
from omlx.engine.loop import EngineLoop
from omlx.engine.thread import EngineThread
from omlx.engine.types import Event, Failed, Finished, FinishReason, Request, TokensCommitted
from omlx.errors import EngineDead
from tests.engine.fakes import VOCAB, Counting
from tests.engine.harness import LIMITS, request

PATIENCE_S = 60
LONG = replace(LIMITS, context_length=1 << 20)
"""Room for a request that does not end while a test is held up."""


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

    @property
    def tokens(self) -> list[int]:
        committed = [event for event in self.events if isinstance(event, TokensCommitted)]
        return list(chain.from_iterable(event.tokens for event in committed))


@pytest.fixture
def thread() -> Iterator[EngineThread]:
    thread = EngineThread()
    thread.start()
    yield thread
    thread.stop()


def serve(thread: EngineThread, name: str = "m", poison: frozenset[int] = frozenset()) -> None:
    """Attach a model that counts; made on the engine thread, as all arrays must be."""
    thread.call(lambda: thread.attach(name, build_loop(Counting(poison), VOCAB, LONG))).result(
        PATIENCE_S
    )


def ask(name: str = "a", first: int = 5, max_tokens: int = 6) -> Request:
    return request(name, (first,), max_tokens=max_tokens)


def endless(name: str = "a") -> Request:
    return request(name, (5,), max_tokens=LONG.context_length - 8)


def test_events_arrive_at_the_sink_on_the_engine_thread(thread: EngineThread) -> None:
    serve(thread)
    listeners = [Listener() for _ in range(3)]
    for i, listener in enumerate(listeners):
        thread.submit("m", ask(f"{i}", first=10 * i), listener)
    for i, listener in enumerate(listeners):
        last = listener.last()
        assert last.reason is FinishReason.LENGTH
        assert listener.tokens == list(range(10 * i + 1, 10 * i + 7))
        assert listener.threads == {"omlx-engine"}


def test_two_models_take_turns(thread: EngineThread) -> None:
    serve(thread, "one")
    serve(thread, "two")
    first, second = Listener(), Listener()
    thread.submit("one", endless("a"), first)
    thread.submit("two", ask("b"), second)
    assert isinstance(second.last(), Finished)
    assert not any(isinstance(event, Finished) for event in first.events)
    thread.cancel("a")
    assert isinstance(first.last(), Finished)


def test_a_cancelled_request_hears_of_its_end(thread: EngineThread) -> None:
    serve(thread)
    listener = Listener()
    thread.submit("m", endless(), listener)
    listener.begun()
    thread.cancel("a")
    last = listener.last()
    assert last.reason is FinishReason.CANCELLED
    thread.cancel("a")
    thread.cancel("unknown")
    again = Listener()
    thread.submit("m", ask("a"), again)
    assert isinstance(again.last(), Finished)
    assert again.tokens == list(range(6, 12))


def test_a_refused_request_hears_why(thread: EngineThread) -> None:
    serve(thread)
    listener = Listener()
    thread.submit("m", request("long", (1,) * (LONG.context_length + 1)), listener)
    last = listener.last()
    assert last.error.code == "engine.prompt_too_long"


def test_a_failed_request_leaves_the_thread_alive(thread: EngineThread) -> None:
    serve(thread, poison=frozenset({8}))
    bad, good = Listener(), Listener()
    thread.submit("m", ask("bad"), bad)
    assert isinstance(bad.last(), Failed)
    thread.submit("m", ask("good", first=20), good)
    assert isinstance(good.last(), Finished)
    assert thread.failure is None


def test_work_between_steps_returns_or_raises_through_its_future(thread: EngineThread) -> None:
    assert thread.call(lambda: threading.current_thread().name).result(PATIENCE_S) == "omlx-engine"
    with pytest.raises(ZeroDivisionError):
        thread.call(lambda: 1 // 0).result(PATIENCE_S)
    assert thread.call(lambda: 3).result(PATIENCE_S) == 3


def test_a_sink_that_raises_loses_its_own_events_only(thread: EngineThread) -> None:
    def deaf(events: Sequence[Event]) -> None:
        raise RuntimeError("the listener has gone")

    serve(thread)
    listener = Listener()
    thread.submit("m", ask("deaf"), deaf)
    thread.submit("m", ask("b"), listener)
    assert isinstance(listener.last(), Finished)
    assert thread.failure is None


def test_a_second_request_of_an_open_id_leaves_the_first_alone(thread: EngineThread) -> None:
    serve(thread)
    first, second = Listener(), Listener()
    thread.submit("m", endless("a"), first)
    first.begun()
    thread.submit("m", ask("a", max_tokens=2), second)
    failed = second.last()
    assert failed.error.code == "engine.duplicate"
    assert len(second.events) == 1
    thread.cancel("a")
    assert isinstance(first.last(), Finished)
    assert first.tokens == [(6 + i) % VOCAB for i in range(len(first.tokens))]


def test_an_unknown_model_fails_its_request_alone(thread: EngineThread) -> None:
    serve(thread)
    lost, found = Listener(), Listener()
    thread.submit("gone", ask("a"), lost)
    assert isinstance(lost.last(), Failed)
    thread.submit("m", ask("b"), found)
    assert isinstance(found.last(), Finished)


class Mortal(EngineLoop):
    """A loop whose step raises once it is `doomed`, outside all isolation."""

    doomed = False

    def step(self) -> list[Event]:
        if self.doomed:
            raise MemoryError("no more")
        return super().step()


def kill(thread: EngineThread, listener: Listener) -> None:
    """End the thread in the middle of a request."""
    built = thread.call(lambda: build_loop(Counting(), VOCAB, LONG)).result(PATIENCE_S)
    loop = Mortal(built.runner, built.scheduler)
    thread.call(lambda: thread.attach("m", loop)).result(PATIENCE_S)
    thread.submit("m", endless(), listener)
    listener.begun()

    def doom() -> None:
        loop.doomed = True

    thread.call(doom)
    listener.last()


def test_the_threads_death_fails_open_requests_and_whatever_comes_later() -> None:
    thread = EngineThread()
    thread.start()
    listener, late = Listener(), Listener()
    kill(thread, listener)
    last = listener.last()
    assert isinstance(last.error, EngineDead)
    assert last.error.code == "engine.dead"
    assert last.error.params == {"detail": "MemoryError"}, "its text is for the log alone"
    assert last.error.status == 503
    assert isinstance(thread.failure, EngineDead)
    with pytest.raises(EngineDead):
        thread.submit("m", ask("late"), late)
    with pytest.raises(EngineDead):
        thread.call(lambda: 1)
    thread.cancel("a")
    thread.stop()
    assert late.events == []


def test_stop_ends_the_thread_and_fails_what_is_open() -> None:
    thread = EngineThread()
    thread.start()
    serve(thread)
    listener = Listener()
    thread.submit("m", endless(), listener)
    listener.begun()
    thread.stop()
    listener.last()
    assert isinstance(thread.failure, EngineDead)
    assert thread.failure.code == "engine.stopped"
    with pytest.raises(EngineDead):
        thread.call(lambda: 1)


def test_work_that_waits_when_the_thread_stops_is_failed_not_forgotten(
    thread: EngineThread,
) -> None:
    entered, leave = threading.Event(), threading.Event()

    def occupy() -> None:
        entered.set()
        assert leave.wait(PATIENCE_S)

    busy = thread.call(occupy)
    assert entered.wait(PATIENCE_S)
    stopper = threading.Thread(target=thread.stop)
    stopper.start()
    later = thread.call(lambda: 1)
    leave.set()
    busy.result(PATIENCE_S)
    stopper.join(PATIENCE_S)
    assert later.done()
    assert later.exception() is None or isinstance(later.exception(), EngineDead)


def test_load_says_how_many_are_where(thread: EngineThread) -> None:
    serve(thread)
    listener = Listener()
    thread.submit("m", endless(), listener)
    listener.begun()
    load = thread.call(lambda: thread.request_counts("m")).result(PATIENCE_S)
    assert (load.waiting, load.prefilling) == (0, 0)
    assert load.decoding <= 1
    assert thread.request_counts("unknown").decoding == 0
    thread.cancel("a")
    listener.last()


def test_a_part_of_a_prompt_is_computed_ahead_if_it_is_long_enough(thread: EngineThread) -> None:
    serve(thread)
    part = replace(ask(), tokens=(5,) * 40, stable=20)
    may = [thread.may_prefill("m", part, least).result(PATIENCE_S) for least in (1, 20, 21)]
    assert may == [True, True, False]


def test_what_the_background_has_read_is_cleared_with_the_rest() -> None:
    thread = EngineThread()
    filling = replace(request("fill", tuple(range(VOCAB)) * 4, max_tokens=0), background=True)
    thread.start()
    limits = replace(LONG, prefill_chunk=16)
    loop = thread.call(lambda: build_loop(Counting(), VOCAB, limits)).result(PATIENCE_S)
    thread.call(lambda: thread.attach("m", loop)).result(PATIENCE_S)
    background, cleared = Listener(), list[Future[None]]()

    def clear(events: Sequence[Event]) -> None:
        if not cleared:
            cleared.append(thread.clear_prefixes("m"))
        background(events)

    thread.submit("m", filling, clear)
    ended = background.last()
    assert isinstance(ended, Finished)
    assert ended.reason is FinishReason.CANCELLED
    cleared[0].result(PATIENCE_S)
    stats = thread.prefix_of("m")
    assert stats is not None
    assert stats.tokens == 0
    thread.stop()


def test_a_request_in_the_background_ends_as_soon_as_another_comes() -> None:
    thread = EngineThread()
    limits = replace(LONG, prefill_chunk=16)
    tokens = tuple(range(VOCAB)) * 4
    filling = replace(request("fill", tokens, max_tokens=0), background=True)
    thread.start()
    loop = thread.call(lambda: build_loop(Counting(), VOCAB, limits)).result(PATIENCE_S)
    thread.call(lambda: thread.attach("m", loop)).result(PATIENCE_S)
    background, other = Listener(), Listener()

    def interrupt(events: Sequence[Event]) -> None:
        if not background.events:
            thread.submit("m", ask("other"), other)
        background(events)

    thread.submit("m", filling, interrupt)
    ended = background.last()
    assert ended.reason is FinishReason.CANCELLED
    assert len(background.events) <= 4  # of the chunks, one more is in flight
    assert isinstance(other.last(), Finished)
    assert other.tokens == [6, 7, 8, 9, 10, 11]
    again = Listener()
    thread.submit("m", replace(filling, id="again"), again)
    ended = again.last()
    assert (ended.reason, ended.stats.cached_n > 0) == (FinishReason.LENGTH, True)
    thread.submit("m", endless(), Listener())
    late = Listener()
    thread.submit("m", replace(filling, id="late"), late)
    refused = late.last()
    assert refused.error.code == "engine.busy"
    thread.stop()


def test_the_heartbeat_names_the_work_in_progress(thread: EngineThread) -> None:
    serve(thread)
    work = thread.call(lambda: thread.heartbeat.work).result(PATIENCE_S)
    assert work.loop is None
    seen: list[EngineLoop | None] = []
    listener = Listener()

    def sink(events: Sequence[Event]) -> None:
        step = thread.heartbeat.work
        seen.append(None if step is None or step.loop is None else step.loop())
        listener(events)

    thread.submit("m", ask(), sink)
    listener.last()
    assert set(seen) == {thread._loops["m"]}


def test_an_abandoned_thread_fails_what_waits_for_it_and_ends_when_it_returns() -> None:
    thread = EngineThread()
    thread.start()
    begun, answers = threading.Event(), threading.Event()

    def hang() -> int:
        begun.set()
        answers.wait(PATIENCE_S)
        return 1

    hanging, waiting = thread.call(hang), thread.call(lambda: 2)
    assert begun.wait(PATIENCE_S)
    thread.stop(timeout_s=0.0)
    assert thread.failure is None, "it hangs, and stop does not wait for it"
    failure = EngineDead("engine.hung", seconds=61, limit=60)
    thread.abandon(failure)
    for future in (hanging, waiting):
        with pytest.raises(EngineDead) as raised:
            future.result(PATIENCE_S)
        assert raised.value is failure
    answers.set()
    thread._thread.join(PATIENCE_S)
    assert not thread._thread.is_alive()
    assert thread.failure is failure


def test_open_requests_can_be_failed_while_the_thread_serves_others(thread: EngineThread) -> None:
    serve(thread)
    listeners = [Listener(), Listener()]
    for name, listener in zip("ab", listeners, strict=True):
        thread.submit("m", endless(name), listener)
    listeners[0].begun()
    thread.fail_open(EngineDead("engine.stopped"))
    for listener in listeners:
        last = listener.last()
        assert last.error.code == "engine.stopped"
    late = Listener()
    thread.submit("m", ask("late"), late)
    assert isinstance(late.last(), Finished)
