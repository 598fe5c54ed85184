"""The watchdog tells a hang from slow work, from a stopped process, and from waiting for work."""

from __future__ import annotations

import pytest

from omlx.engine.build import build_loop
from omlx.engine.loop import EngineLoop
from omlx.engine.work import LOOK_S, SLOWER, HangBounds, Heartbeat, Watchdog, step_estimate
from omlx.errors import EngineDead
from tests.engine.fakes import VOCAB, Counting
from tests.engine.harness import LIMITS, request

BOUNDS = HangBounds()


class Watched:
    """A heartbeat and its watchdog, on a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.loops: list[EngineLoop] = []  # a loop that is gone has no estimate
        self.heartbeat = Heartbeat()
        self.watchdog = Watchdog(self.heartbeat, clock=lambda: self.now)

    def begin(self, loop: EngineLoop) -> EngineLoop:
        self.loops.append(loop)
        self.heartbeat.begin(loop)
        return loop

    def look_for(self, seconds: float, every_s: float = 0.5) -> EngineDead | None:
        """Look again and again for so long; return the first failure."""
        until = self.now + seconds
        failure = self.watchdog.look()
        while failure is None and self.now < until:
            self.now += every_s
            failure = self.watchdog.look()
        return failure


@pytest.fixture
def watched() -> Watched:
    return Watched()


def loop_with(passes: dict[int, float]) -> EngineLoop:
    """A loop whose passes over so many tokens take so many seconds."""
    loop = build_loop(Counting(), VOCAB, LIMITS)
    for _ in range(4):
        for width, seconds in passes.items():
            loop.cost_model.target.learn(width, 1, seconds)
    return loop


def quick() -> EngineLoop:
    return loop_with({1: 0.01, 16: 0.02})


def prefill(loop: EngineLoop, tokens: int) -> EngineLoop:
    loop.submit(request("a", (1,) * tokens, max_tokens=2))
    loop.step()
    return loop


def test_waiting_for_work_is_no_hang(watched: Watched) -> None:
    watched.heartbeat.begin()
    watched.look_for(1.0)
    watched.heartbeat.end()
    assert watched.look_for(10 * BOUNDS.unknown_s) is None


def test_one_piece_of_work_after_another_is_no_hang(watched: Watched) -> None:
    loop = quick()
    for _ in range(5):
        watched.heartbeat.begin(loop)
        assert watched.look_for(0.9 * BOUNDS.known_s) is None


def test_a_step_hangs_beyond_its_bound_and_not_before(watched: Watched) -> None:
    watched.begin(quick())
    assert watched.look_for(BOUNDS.known_s) is None
    failure = watched.look_for(1.0)
    assert failure.code == "engine.hung"
    assert failure.params == {"seconds": 60, "limit": 60}
    assert failure.status == 503


def test_slow_steps_may_take_twenty_times_their_estimate(watched: Watched) -> None:
    loop = loop_with({1: 10.0, 16: 12.0})
    estimate = step_estimate(loop)
    assert estimate >= 12.0
    watched.begin(loop)
    assert watched.look_for(SLOWER * estimate - 1.0) is None
    assert watched.look_for(2.0) is not None


def test_what_was_never_measured_and_what_was_posted_may_take_long(watched: Watched) -> None:
    unmeasured = build_loop(Counting(), VOCAB, LIMITS)
    for loop in (unmeasured, None):
        watched.heartbeat.begin(loop)
        assert watched.look_for(BOUNDS.unknown_s) is None
        assert watched.look_for(1.0) is not None


def test_time_in_which_the_process_was_stopped_does_not_count(watched: Watched) -> None:
    watched.begin(quick())
    watched.look_for(1.0)
    watched.now += 3600.0
    assert watched.watchdog.look() is None
    assert watched.look_for(BOUNDS.known_s - 1.0 - LOOK_S) is None
    assert watched.look_for(1.0) is not None


def test_a_server_that_ends_waits_less_for_a_hang_and_longer_for_slow_steps(
    watched: Watched,
) -> None:
    watched.watchdog.ending = True
    watched.begin(quick())
    assert watched.look_for(BOUNDS.ending_s) is None
    assert watched.look_for(1.0) is not None
    watched.begin(loop_with({1: 10.0, 16: 12.0}))
    assert watched.look_for(2 * 12.0) is None


def test_the_estimate_of_a_prompt_is_that_of_its_chunk_once_one_was_measured() -> None:
    loop = loop_with({1: 0.1, 16: 0.2})
    decoding = step_estimate(loop)
    prefill(loop, 200)
    assert step_estimate(loop) is None
    loop.cost_model.target.learn_chunk(200, 200, 4.0)
    estimate = step_estimate(loop)
    assert estimate > 1.0 > decoding


def test_a_prompt_whose_like_was_not_measured_may_take_as_long_as_its_tokens_one_by_one(
    watched: Watched,
) -> None:
    loop = prefill(loop_with({1: 10.0}), 200)
    assert step_estimate(loop) is None
    watched.begin(loop)
    assert watched.look_for(2000.0 - 1.0) is None
    assert watched.look_for(2.0) is not None


def test_a_model_that_was_unloaded_is_not_kept_in_memory(watched: Watched) -> None:
    loop = build_loop(Counting(), VOCAB, LIMITS)
    watched.heartbeat.begin(loop)
    watched.watchdog.look()
    work = watched.heartbeat.work
    assert work.loop() is loop
    del loop
    assert work.loop() is None
