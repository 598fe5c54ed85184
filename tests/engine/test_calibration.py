"""What the engine measures while idle, and that no request is delayed or changed by it."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn

from omlx.engine.build import build_loop
from omlx.engine.calibration import (
    BATCH_WIDTHS,
    BATCHES,
    COLD_SECONDS,
    SAMPLES,
    Calibration,
    _all_steps,
    _Filler,
    longest_pass,
)
from omlx.engine.loop import EngineLoop
from omlx.engine.memory import MemoryGuard
from omlx.engine.speculation.config import CONFIG
from omlx.engine.speculation.cost_model import PLAIN, CostModel, LatencyTable
from omlx.engine.speculation.drafters.draft_model import DraftModel
from omlx.engine.speculation.strategy import AUTO
from omlx.engine.thread import EngineThread
from omlx.engine.types import CalibrationState, Request, Speculation
from omlx.errors import Reason
from tests import zoo
from tests.engine.fakes import VOCAB, Counting
from tests.engine.harness import LIMITS, loop_of, model, plain, request
from tests.engine.threads import PATIENCE_S, Listener, attach, started, submit
from tests.lanes import few

ALL = (PLAIN, 1, *CONFIG.widths)
SHORT_STEP_SECONDS = 60.0


class Watched(LatencyTable):
    """A latency table that can be waited for, and that records the widths it learned."""

    def __init__(self) -> None:
        super().__init__()
        self.learned: list[int] = []
        self._change = threading.Condition()

    def learn(self, width: int, context: int, seconds: float) -> bool:
        with self._change:
            learned = super().learn(width, context, seconds)
            self.learned.append(width)
            self._change.notify_all()
            return learned

    def wait_until(self, reached: Callable[[], bool]) -> None:
        with self._change:
            assert self._change.wait_for(reached, PATIENCE_S)

    def full(self) -> bool:
        return all(self.sample_count(width, 1) >= SAMPLES for width in ALL)


class Recording(Counting):
    """A model that counts and remembers its passes; it can be held up in one of them."""

    def __init__(self, hold: int = 0) -> None:
        super().__init__()
        self.passes: list[Any] = []
        self.held, self.go = threading.Event(), threading.Event()
        self._hold = hold

    def __call__(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        self.passes.append(tokens.flatten().tolist())
        if len(self.passes) == self._hold:
            self.held.set()
            assert self.go.wait(PATIENCE_S)
        return super().__call__(tokens, cache)


class Failing(Counting):
    """A model that counts, but not over a token that no request of these tests brings."""

    def __init__(self) -> None:
        super().__init__()
        self.failed = threading.Event()

    def __call__(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        if tokens.flatten().tolist() == [3]:
            self.failed.set()
            raise ValueError("no more")
        return super().__call__(tokens, cache)


@pytest.fixture
def thread() -> Iterator[EngineThread]:
    with started(calibrates=True) as thread:
        yield thread


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle at once without work; no pass is too long, however slow the machine."""
    monkeypatch.setattr("omlx.engine.thread.IDLE_SECONDS", 0.0)
    monkeypatch.setattr("omlx.engine.calibration.SHORT_STEP_SECONDS", SHORT_STEP_SECONDS)


def serve(
    thread: EngineThread,
    target: nn.Module,
    vocab_size: int = zoo.VOCAB_SIZE,
    name: str = "m",
    batches: LatencyTable | None = None,
    **more: Any,
) -> Watched:
    """Attach a model; return the table of its passes. `batches` is that of its widest batch."""
    watched = Watched()
    costs = CostModel(watched, {}, {} if batches is None else {BATCHES[-1]: batches})
    attach(thread, lambda: build_loop(target, vocab_size, LIMITS, cost_model=costs, **more), name)
    return watched


def answer(thread: EngineThread, of: Request) -> list[int]:
    listener = submit(thread, of)
    listener.finished()
    return listener.tokens


def state(thread: EngineThread) -> CalibrationState:
    return thread.snapshot("m").result(PATIENCE_S).calibration


def complete(loop: EngineLoop) -> Calibration:
    calibration = Calibration("m", loop)
    calibration.run(lambda: False)
    return calibration


@pytest.mark.parametrize("name", few(("llama", "qwen3_next", "gemma3_text"), "qwen3_next"))
def test_an_idle_engine_measures_every_pass_of_the_table_once(
    thread: EngineThread, name: str
) -> None:
    batches = Watched()
    table = serve(thread, model(name), batches=batches)
    table.wait_until(table.full)
    asked = request(max_tokens=3)
    assert answer(thread, asked) == plain(name, asked)
    widest = BATCHES[-1] * BATCH_WIDTHS[-1]
    batches.wait_until(lambda: batches.sample_count(widest, 1) >= SAMPLES)
    while state(thread) is CalibrationState.PENDING:
        pass
    assert state(thread) is CalibrationState.DONE
    before = len(table.learned)
    other = serve(thread, model(name), name="other")
    other.wait_until(other.full)
    assert len(table.learned) == before, "what is known was measured again"


def test_questions_are_answered_between_passes_and_interrupt_nothing(
    thread: EngineThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[EngineLoop] = []

    def all_steps(loop: EngineLoop, warm_up: Iterator[bool]) -> Iterator[bool]:
        begun.append(loop)
        return _all_steps(loop, warm_up)

    monkeypatch.setattr("omlx.engine.calibration._all_steps", all_steps)
    target = Recording(hold=40)
    serve(thread, target, VOCAB)
    assert target.held.wait(PATIENCE_S)
    questions = [thread.snapshot("m"), thread.snapshot("m")]
    target.go.set()
    for question in questions:
        assert question.result(PATIENCE_S).calibration is CalibrationState.PENDING
    while state(thread) is CalibrationState.PENDING:
        pass
    assert len(begun) == 1


def test_widths_take_turns_so_that_other_work_of_the_machine_slows_all_of_them() -> None:
    watched = Watched()
    costs = CostModel(watched)
    complete(build_loop(model("llama"), zoo.VOCAB_SIZE, LIMITS, cost_model=costs))
    narrow = [at for at, width in enumerate(watched.learned) if width == CONFIG.widths[0]]
    assert set(ALL) <= set(watched.learned[: narrow[2]])  # the first one may be compiling


def test_each_of_several_models_is_measured_and_nothing_is_published(thread: EngineThread) -> None:
    tables = [serve(thread, model(name), name=name) for name in ("llama", "qwen3_next")]
    for table in tables:
        table.wait_until(table.full)
    for name in ("llama", "qwen3_next"):
        assert thread.prefix_of(name) == loop_of(name).prefix_stats, "something was kept"
        assert (thread.request_counts(name).decoding, thread.submissions) == (0, 0)


@pytest.mark.parametrize("name", few(("llama", "qwen3_next", "gemma3_text"), "qwen3_next"))
def test_a_draft_model_is_measured_too_and_alone_where_the_target_is_known(name: str) -> None:
    known = complete(loop_of("llama", window=None)).loop.cost_model
    before = known.target.sample_count
    assert all(before(width, 1) == SAMPLES for width in ALL)
    loop = loop_of("llama", model(name, 1), window=None, costs=known)
    assert complete(loop).state is CalibrationState.DONE
    assert loop.cost_model.drafts["tiny"].sample_count(1, 1) >= CONFIG.min_samples
    drafters = loop.scheduler.speculator.drafters
    assert [each.nbytes for each in drafters if isinstance(each, DraftModel)] == [0]
    assert all(before(width, 1) == SAMPLES for width in CONFIG.widths if width != 5)


def test_tokens_are_the_same_whatever_is_measured_in_between(thread: EngineThread) -> None:
    table = serve(thread, model("qwen3_next"), draft=model("qwen3_next"), draft_name="same")
    for i in range(6):
        asked = request(f"{i}", max_tokens=12, speculation=Speculation(AUTO))
        assert answer(thread, asked) == plain("qwen3_next", asked)
        before = len(table.learned)
        table.wait_until(lambda before=before: table.full() or len(table.learned) >= before + 3)


def test_a_request_waits_for_one_pass_at_most(thread: EngineThread) -> None:
    target = Recording(hold=40)
    serve(thread, target, VOCAB)
    assert target.held.wait(PATIENCE_S), "nothing was measured"
    listener = submit(thread, request("a", (40, 41, 42), max_tokens=4))
    target.go.set()
    listener.finished()
    assert listener.tokens == [43, 44, 45, 46]
    assert target.passes.index([40, 41]) == 40, (
        "a pass was made between the one that ran and the request's first"
    )


def test_nothing_is_measured_while_a_request_waits(thread: EngineThread) -> None:
    target = Recording()
    used = [0]
    memory = MemoryGuard(1 << 20, lambda: used[0], request_eviction=lambda nbytes: None)
    listener = Listener()

    def begin() -> int:
        loop = build_loop(target, VOCAB, LIMITS, memory=memory)
        enough = loop.scheduler.prefix.layout.cache_bytes(300)  # for 256 tokens
        used[0] = memory.soft - enough
        thread.attach("m", loop)
        thread.submit("m", request(tokens=(40, 41), max_tokens=300), listener)
        return len(target.passes)

    probed = thread.call(begin).result(PATIENCE_S)
    for _ in range(20):
        thread.call(lambda: None).result(PATIENCE_S)
    assert len(target.passes) == probed
    used[0] = 0
    thread.call(memory.eviction_done).result(PATIENCE_S)
    listener.finished()
    assert target.passes[probed] == [40]


def test_a_model_can_go_in_the_middle_of_it(thread: EngineThread) -> None:
    target = Recording(hold=40)
    serve(thread, target, VOCAB)
    assert target.held.wait(PATIENCE_S)
    gone = thread.call(lambda: thread.detach("m"))
    target.go.set()
    gone.result(PATIENCE_S)
    there = weakref.ref(target)
    del target
    assert thread.call(lambda: there() is None).result(PATIENCE_S), "something holds the model"
    assert thread.snapshot("m").result(PATIENCE_S) is None


def test_the_thread_ends_in_the_middle_of_it(thread: EngineThread) -> None:
    target = Recording(hold=40)
    serve(thread, target, VOCAB)
    assert target.held.wait(PATIENCE_S)
    stopping = threading.Thread(target=thread.stop)
    stopping.start()
    while thread._inbox.empty():
        stopping.join(0.01)
    target.go.set()
    stopping.join(PATIENCE_S)
    assert not stopping.is_alive()
    assert len(target.passes) == 40


def test_a_failure_ends_it_with_its_frames_and_nothing_else(
    thread: EngineThread, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "omlx.engine"):
        target = Failing()
        serve(thread, target, VOCAB)
        assert target.failed.wait(PATIENCE_S)
        assert state(thread) is CalibrationState.FAILED
        for name in "ab":
            assert answer(thread, request(name, (5,), max_tokens=4)) == [6, 7, 8, 9]
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["a step failed", "calibration failed"]
    assert thread.failure is None


def test_it_holds_no_memory_once_it_is_interrupted() -> None:
    loop = loop_of("llama", model("llama", 1))
    turns = count()
    gc.collect()
    before = mx.get_active_memory()
    calibration = Calibration("m", loop)
    calibration.run(lambda: next(turns) == 20)
    assert next(turns) == 21
    assert calibration.state is CalibrationState.PENDING
    assert mx.get_active_memory() == before


def test_where_memory_is_short_nothing_is_done() -> None:
    used = [0]
    memory = MemoryGuard(1 << 20, lambda: used[0])
    loop = build_loop(model("llama"), zoo.VOCAB_SIZE, LIMITS, memory=memory)
    used[0] = memory.soft - loop.scheduler.prefix.layout.cache_bytes(256) + 1
    assert complete(loop).state is CalibrationState.PENDING
    assert loop.cost_model.target.widest == 0
    used[0] -= 1
    assert complete(loop).state is CalibrationState.DONE


@pytest.mark.parametrize("name", few(("llama", "gemma3_text", "lfm2"), "lfm2"))
def test_batches_are_measured_and_the_draft_models_of_their_rows(name: str) -> None:
    loop = loop_of(name, model(name, 1))
    assert complete(loop).state is CalibrationState.DONE
    costs = loop.cost_model
    for rows in BATCHES:
        for width in (PLAIN, *BATCH_WIDTHS):
            assert costs.batch_samples(rows, width, 1) >= SAMPLES, (rows, width)
        assert costs.drafts["tiny"].sample_count(rows, 1) >= CONFIG.min_samples


def test_batches_are_measured_only_where_rows_can_share_them_and_fit() -> None:
    alone = loop_of("llama_concatenate")
    assert complete(alone).state is CalibrationState.DONE
    used = [0]
    memory = MemoryGuard(1 << 20, lambda: used[0])
    loop = build_loop(model("llama"), zoo.VOCAB_SIZE, LIMITS, memory=memory)
    used[0] = memory.soft - 4 * loop.scheduler.prefix.layout.cache_bytes(256)
    assert complete(loop).state is CalibrationState.DONE
    assert not alone.cost_model.batches
    assert list(loop.cost_model.batches) == [2]


def test_the_model_is_not_run_to_prepare_it() -> None:
    target = Recording()
    loop = build_loop(target, VOCAB, LIMITS, draft=Counting())
    before = len(target.passes)
    loop.sibling()
    assert len(target.passes) == before


@pytest.mark.parametrize(
    ("known", "following"),
    [
        ({}, 1),
        ({1: 0.4}, PLAIN),
        ({1: 0.6}, 2),  # plain steps overlap: a new request waits for two
        ({1: 1.1}, None),
        ({1: 0.4, PLAIN: 0.4}, 2),
        ({1: 0.4, PLAIN: 0.4, 2: 1.1}, None),
        (dict.fromkeys(ALL, 0.4), None),
    ],
)
def test_the_narrowest_pass_that_delays_no_request_is_next(
    known: dict[int, float], following: int | None
) -> None:
    costs = known_costs({width: share * SHORT_STEP_SECONDS for width, share in known.items()})
    assert _Filler(costs, VOCAB).next_width() == following


def known_costs(seconds: dict[int, float], samples: int = SAMPLES) -> CostModel:
    """A cost model in which the passes of some widths are measured."""
    target = LatencyTable()
    for width, pass_s in seconds.items():
        for _ in range(samples):
            target.learn(width, 1, pass_s)
    return CostModel(target)


@pytest.fixture
def default_bounds(monkeypatch: pytest.MonkeyPatch, patience: None) -> None:
    monkeypatch.setattr("omlx.engine.calibration.SHORT_STEP_SECONDS", 0.05)


@pytest.mark.usefixtures("default_bounds")
@pytest.mark.parametrize(
    ("plain", "longest"), [(0.0, 0.05), (0.002, 0.05), (0.06, 0.18), (0.3, 0.9), (0.5, 1.0)]
)
def test_the_longest_pass_follows_the_plain_step(plain: float, longest: float) -> None:
    known = {PLAIN: plain, 1: plain} if plain else {}
    assert longest_pass(known_costs(known)) == pytest.approx(longest)


@pytest.mark.usefixtures("default_bounds")
def test_a_model_of_60_ms_a_token_is_measured_as_far_as_three_plain_steps() -> None:
    """The passes of a 27B in 4 bit on an M4 Pro, measured as calibration would."""
    shape = {PLAIN: 1.0, 1: 1.0, 2: 1.03, 3: 1.22, 4: 1.47, 5: 1.75, 6: 2.07, 7: 2.4, 8: 2.7}
    costs = known_costs({})
    filler = _Filler(costs, VOCAB)
    measured: dict[int, int] = {}
    while (width := filler.next_width()) is not None:
        measured[width] = measured.get(width, 0) + 1
        costs.target.learn(width, 1, 0.06 * shape.get(width, 0.45 * width))
    assert set(shape) <= set(measured)
    assert max(measured) == 8, "a wider pass takes more than three plain steps"
    assert all(measured[width] == CONFIG.min_samples for width in shape if width)
    assert sum(measured.values()) <= CONFIG.min_samples * len(measured)


def test_the_first_passes_after_a_pause_teach_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    many = 20
    monkeypatch.setattr("omlx.engine.calibration.WARM_UP_PASSES", many)
    watched, now = Watched(), [100.0]
    loop = build_loop(Counting(), VOCAB, LIMITS, cost_model=CostModel(watched))
    calibration = Calibration("m", loop, clock=lambda: now[0])

    def learned() -> int:
        """Run `many` steps. Return from how many the cost model learned."""
        before, turns = len(watched.learned), count()
        calibration.run(lambda: next(turns) == many)
        return len(watched.learned) - before

    assert learned() == 0
    now[0] += COLD_SECONDS
    assert learned() > 0
    now[0] += 1.01 * COLD_SECONDS
    assert learned() == 0


def test_a_pause_warms_nothing_up_where_nothing_is_left_to_measure() -> None:
    loop = build_loop(model("llama"), zoo.VOCAB_SIZE, LIMITS)
    complete(loop)
    target = Recording()
    known = build_loop(target, VOCAB, replace(LIMITS, max_rows=1), cost_model=loop.cost_model)
    before = len(target.passes)
    assert complete(known).state is CalibrationState.DONE
    assert len(target.passes) == before


def test_what_is_known_to_take_too_long_is_left_to_requests() -> None:
    """One slow pass says nothing yet."""
    target = Recording()
    loop = build_loop(target, VOCAB, LIMITS, draft=Counting())
    filler, passes = _Filler(loop.cost_model, VOCAB), len(target.passes)
    for following in (1, None):
        loop.cost_model.target.learn(1, 1, 2 * SHORT_STEP_SECONDS)
        assert filler.next_width() == following
    assert complete(loop).state is CalibrationState.DONE
    assert len(target.passes) == passes


def test_it_ends_where_something_never_gets_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omlx.engine.calibration.MAX_STEPS", 50)
    monkeypatch.setattr(LatencyTable, "learn", lambda *_: False)
    loop = loop_of("llama")
    calibration = Calibration("m", loop)
    runs = 0
    while calibration.state is CalibrationState.PENDING and runs < 10:
        runs, turns = runs + 1, count()
        calibration.run(lambda turns=turns: next(turns) == 20)
    assert calibration.state is CalibrationState.DONE
    assert runs == 3


def test_a_short_context_is_enough() -> None:
    loop = build_loop(model("llama"), zoo.VOCAB_SIZE, replace(LIMITS, context_length=128))
    assert complete(loop).state is CalibrationState.DONE
    assert loop.cost_model.target.sample_count(PLAIN, 1) >= CONFIG.min_samples


def test_a_model_that_cannot_speculate_is_left_alone() -> None:
    loop = loop_of("llama")
    loop.use_drafters([], off_reason=Reason("spec.off.cache", {"layers": "X"}))
    assert complete(loop).state is CalibrationState.DONE
    assert loop.cost_model.target.widest == 0


def test_it_happens_only_where_it_is_switched_on() -> None:
    with started() as thread:
        table = serve(thread, model("llama"))
        for name in "ab":
            asked = request(name, max_tokens=4)
            assert answer(thread, asked) == plain("llama", asked)
        assert set(table.learned) <= {PLAIN, 1}
        assert state(thread) is CalibrationState.OFF
