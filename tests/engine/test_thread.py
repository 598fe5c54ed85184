"""The engine thread: events arrive, work runs between steps, and its end fails open requests."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace

import pytest

from omlx.engine.build import build_loop
from omlx.engine.loop import EngineLoop
from omlx.engine.thread import EngineThread
from omlx.engine.types import Event, Finished, FinishReason, Request
from omlx.errors import EngineDead
from tests.engine.fakes import VOCAB, Counting
from tests.engine.harness import LIMITS, request
from tests.engine.threads import PATIENCE_S, Listener, attach, started, submit

LONG = replace(LIMITS, context_length=1 << 20)
"""Room for a request that does not end while a test is held up."""


@pytest.fixture
def thread() -> Iterator[EngineThread]:
    with started() as thread:
        yield thread


def serve(thread: EngineThread, name: str = "m", poison: frozenset[int] = frozenset()) -> None:
    """Attach a model that counts."""
    attach(thread, lambda: build_loop(Counting(poison), VOCAB, LONG), name)


def ask(name: str = "a", first: int = 5, max_tokens: int = 6) -> Request:
    return request(name, (first,), max_tokens=max_tokens)


def endless(name: str = "a") -> Request:
    return request(name, (5,), max_tokens=LONG.context_length - 8)


def test_events_arrive_at_the_sink_on_the_engine_thread(thread: EngineThread) -> None:
    serve(thread)
    listeners = [submit(thread, ask(f"{i}", first=10 * i)) for i in range(3)]
    for i, listener in enumerate(listeners):
        assert listener.finished().reason is FinishReason.LENGTH
        assert listener.tokens == list(range(10 * i + 1, 10 * i + 7))
        assert listener.threads == {"omlx-engine"}


def test_two_models_take_turns(thread: EngineThread) -> None:
    serve(thread, "one")
    serve(thread, "two")
    first = submit(thread, endless("a"), "one")
    submit(thread, ask("b"), "two").finished()
    assert not any(isinstance(event, Finished) for event in first.events)
    thread.cancel("a")
    first.finished()


def test_a_cancelled_request_hears_of_its_end(thread: EngineThread) -> None:
    serve(thread)
    listener = submit(thread, endless()).begun()
    thread.cancel("a")
    assert listener.finished().reason is FinishReason.CANCELLED
    thread.cancel("a")
    thread.cancel("unknown")
    again = submit(thread, ask("a"))
    again.finished()
    assert again.tokens == list(range(6, 12))


def test_a_refused_request_hears_why(thread: EngineThread) -> None:
    serve(thread)
    long = request("long", (1,) * (LONG.context_length + 1))
    assert submit(thread, long).failed().code == "engine.prompt_too_long"


def test_a_failed_request_leaves_the_thread_alive(thread: EngineThread) -> None:
    serve(thread, poison=frozenset({8}))
    submit(thread, ask("bad")).failed()
    submit(thread, ask("good", first=20)).finished()
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
    thread.submit("m", ask("deaf"), deaf)
    submit(thread, ask("b")).finished()
    assert thread.failure is None


def test_a_second_request_of_an_open_id_leaves_the_first_alone(thread: EngineThread) -> None:
    serve(thread)
    first = submit(thread, endless("a")).begun()
    second = submit(thread, ask("a", max_tokens=2))
    assert second.failed().code == "engine.duplicate"
    assert len(second.events) == 1
    thread.cancel("a")
    first.finished()
    assert first.tokens == [(6 + i) % VOCAB for i in range(len(first.tokens))]


def test_an_unknown_model_fails_its_request_alone(thread: EngineThread) -> None:
    serve(thread)
    submit(thread, ask("a"), "gone").failed()
    submit(thread, ask("b")).finished()


class Mortal(EngineLoop):
    """A loop whose step raises once it is `doomed`, outside all isolation."""

    doomed = False

    def step(self) -> list[Event]:
        if self.doomed:
            raise MemoryError("no more")
        return super().step()


def test_the_threads_death_fails_open_requests_and_whatever_comes_later(
    thread: EngineThread,
) -> None:
    def mortal() -> EngineLoop:
        built = build_loop(Counting(), VOCAB, LONG)
        return Mortal(built.runner, built.scheduler)

    loop, late = attach(thread, mortal), Listener()
    listener = submit(thread, endless()).begun()
    thread.call(lambda: setattr(loop, "doomed", True))
    error = listener.failed()
    assert isinstance(error, EngineDead)
    assert (error.code, error.status) == ("engine.dead", 503)
    assert error.params == {"detail": "MemoryError"}, "its text is for the log alone"
    assert isinstance(thread.failure, EngineDead)
    with pytest.raises(EngineDead):
        thread.submit("m", ask("late"), late)
    with pytest.raises(EngineDead):
        thread.call(lambda: 1)
    thread.cancel("a")
    thread.stop()
    assert late.events == []


def test_stop_ends_the_thread_and_fails_what_is_open(thread: EngineThread) -> None:
    serve(thread)
    listener = submit(thread, endless()).begun()
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
    listener = submit(thread, endless()).begun()
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


FILLING = request("fill", tuple(range(VOCAB)) * 4, max_tokens=0, background=True)


def test_what_the_background_has_read_is_cleared_with_the_rest(thread: EngineThread) -> None:
    attach(thread, lambda: build_loop(Counting(), VOCAB, replace(LONG, prefill_chunk=16)))
    background, cleared = Listener(), list[Future[None]]()

    def clear(events: Sequence[Event]) -> None:
        if not cleared:
            cleared.append(thread.clear_prefixes("m"))
        background(events)

    thread.submit("m", FILLING, clear)
    assert background.finished().reason is FinishReason.CANCELLED
    cleared[0].result(PATIENCE_S)
    assert thread.prefix_of("m").tokens == 0


def test_a_request_in_the_background_ends_as_soon_as_another_comes(thread: EngineThread) -> None:
    attach(thread, lambda: build_loop(Counting(), VOCAB, replace(LONG, prefill_chunk=16)))
    background, other = Listener(), Listener()

    def interrupt(events: Sequence[Event]) -> None:
        if not background.events:
            thread.submit("m", ask("other"), other)
        background(events)

    thread.submit("m", FILLING, interrupt)
    assert background.finished().reason is FinishReason.CANCELLED
    assert len(background.events) <= 4  # of the chunks, one more is in flight
    other.finished()
    assert other.tokens == [6, 7, 8, 9, 10, 11]
    ended = submit(thread, replace(FILLING, id="again")).finished()
    assert (ended.reason, ended.stats.cached_n > 0) == (FinishReason.LENGTH, True)
    submit(thread, endless())
    assert submit(thread, replace(FILLING, id="late")).failed().code == "engine.busy"


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


def test_an_abandoned_thread_fails_what_waits_for_it_and_ends_when_it_returns(
    thread: EngineThread,
) -> None:
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
    listeners = [submit(thread, endless(name)) for name in "ab"]
    listeners[0].begun()
    thread.fail_open(EngineDead("engine.stopped"))
    assert [listener.failed().code for listener in listeners] == ["engine.stopped"] * 2
    submit(thread, ask("late")).finished()
