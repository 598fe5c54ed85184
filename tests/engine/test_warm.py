"""A GPU is kept warm after a step: when it evaluates, and that no post waits for it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from itertools import count

import mlx.core as mx
import pytest

from omlx.engine.build import build_loop
from omlx.engine.device.gpu import DURATION_S, INTERVAL_S, KeepWarm, evaluate_little, warm_gpu
from tests.engine.fakes import VOCAB, Counting
from tests.engine.harness import LIMITS, request
from tests.engine.threads import PATIENCE_S, attach, started, submit


class Inbox:
    """An inbox whose waits advance a clock. A post arrives at `post_at`; at the end if it is None.

    `waits` has the time-outs.
    """

    def __init__(self, post_at: float | None = None) -> None:
        self.now = 100.0
        self.post_at = post_at
        self.waits: list[float | None] = []

    def get(self, *, timeout: float | None = None) -> Callable[[], None]:
        self.waits.append(timeout)
        if timeout is None:
            return post
        if self.post_at is not None and self.post_at < self.now + timeout:
            self.now = max(self.now, self.post_at)
            return post
        self.now += timeout
        raise queue.Empty


def post() -> None:
    pass


def keep_warm(
    inbox: Inbox, times: list[float], allowed: Callable[[], bool] = lambda: True
) -> KeepWarm:
    """Return one that notes when it evaluates."""
    return KeepWarm(allowed, lambda: times.append(inbox.now), lambda: inbox.now)


def wait(warm: KeepWarm, inbox: Inbox) -> None:
    """Wait for the next post of others; run those that `warm` makes, as the engine does."""
    while (posted := warm.next_post(inbox)) is not post:
        posted()


def test_it_evaluates_every_interval_until_the_duration_is_over() -> None:
    inbox, times = Inbox(), []
    warm = keep_warm(inbox, times)
    began = inbox.now
    warm.worked()
    wait(warm, inbox)
    times_due = int(DURATION_S / INTERVAL_S)
    assert times == pytest.approx([began + INTERVAL_S * (i + 1) for i in range(times_due)])
    assert inbox.waits[-1] is None
    wait(warm, inbox)  # a later post, such as a look at the state
    assert len(times) == times_due


def test_without_a_step_it_only_waits() -> None:
    inbox, times = Inbox(), []
    wait(keep_warm(inbox, times), inbox)
    assert inbox.waits == [None]
    assert not times


def test_where_it_is_off_it_only_waits() -> None:
    inbox = Inbox()
    warm = KeepWarm(clock=lambda: inbox.now)
    warm.worked()
    wait(warm, inbox)
    assert inbox.waits == [None]


def test_a_post_is_taken_at_once() -> None:
    inbox, times = Inbox(post_at=100.1), []
    warm = keep_warm(inbox, times)
    warm.worked()
    wait(warm, inbox)
    assert (inbox.now, times) == (100.1, [])


def test_frequent_posts_do_not_delay_evaluations_nor_prolong_them() -> None:
    inbox, times = Inbox(), []
    warm = keep_warm(inbox, times)
    began = inbox.now
    warm.worked()
    while inbox.now < began + 2 * DURATION_S:
        inbox.post_at = inbox.now + 0.2
        wait(warm, inbox)
        inbox.now = max(inbox.now, inbox.post_at)
    assert DURATION_S / INTERVAL_S * 0.8 < len(times) <= DURATION_S / INTERVAL_S
    assert times[-1] <= began + DURATION_S


def test_on_battery_nothing_is_evaluated() -> None:
    inbox, times = Inbox(), []
    mains = iter([False, False, True, *[False] * 100])
    warm = keep_warm(inbox, times, lambda: next(mains))
    warm.worked()
    wait(warm, inbox)
    assert len(times) == 1


def test_an_error_ends_it_until_the_next_step() -> None:
    inbox, times = Inbox(), []

    def fail() -> None:
        times.append(inbox.now)
        raise RuntimeError("[METAL] Command buffer execution failed")

    warm = KeepWarm(lambda: True, fail, lambda: inbox.now)
    for errors in (1, 2):
        warm.worked()
        wait(warm, inbox)
        assert len(times) == errors


def test_a_device_that_is_lost_meanwhile_ends_the_engine_at_once() -> None:
    evaluated, now = threading.Event(), count()

    def fail() -> None:
        evaluated.set()
        raise RuntimeError(
            "[METAL] Command buffer execution failed: Ignored (for causing prior/excessive GPU "
            "errors) (00000004:kIOGPUCommandBufferCallbackErrorSubmissionsIgnored)."
        )

    with started(warm=KeepWarm(lambda: True, fail, lambda: next(now))) as thread:
        attach(thread, lambda: build_loop(Counting(), VOCAB, LIMITS))
        submit(thread, request("a", (5,), max_tokens=6)).last()
        assert evaluated.wait(PATIENCE_S)
    # The end waits for the thread, which ends by itself.
    assert thread.failure.code == "device.lost"


@pytest.mark.parametrize(
    ("wanted", "kind", "warms"),
    [(True, mx.gpu, True), (False, mx.gpu, False), (True, mx.cpu, False)],
)
def test_only_a_gpu_is_kept_warm(wanted: bool, kind: mx.DeviceType, warms: bool) -> None:
    inbox = Inbox(post_at=0.0)
    warm = warm_gpu(wanted, mx.Device(kind, 0))
    warm.worked()
    wait(warm, inbox)
    (waited,) = inbox.waits
    assert (waited is not None) is warms


def test_what_it_evaluates_keeps_no_memory() -> None:
    evaluate_little()
    before = mx.get_active_memory()
    evaluate_little()
    assert mx.get_active_memory() == before


class Counted(KeepWarm):
    """Counts steps and waits of an engine."""

    def __init__(self) -> None:
        super().__init__(lambda: False)
        self.steps = self.waits = 0

    def worked(self) -> None:
        self.steps += 1

    def next_post(self, inbox: queue.SimpleQueue[Callable[[], None]]) -> Callable[[], None]:
        self.waits += 1
        return inbox.get()


def test_the_engine_waits_through_it_and_reports_its_steps() -> None:
    warm = Counted()
    with started(warm=warm) as thread:
        attach(thread, lambda: build_loop(Counting(), VOCAB, LIMITS))
        assert warm.steps == 0
        listener = submit(thread, request("a", (5,), max_tokens=6))
        listener.finished()
        assert listener.tokens == [6, 7, 8, 9, 10, 11]
        thread.call(lambda: None).result(PATIENCE_S)
        assert warm.steps >= 6
        assert warm.waits >= 2
