"""Work of the engine thread: posts of other threads, turns of loaded models, and a watchdog.

A read of the device waits for ever where the device never answers. So the thread notes what it
begins (`Heartbeat`), and another thread looks at it a few times a second (`Watchdog`). A piece of
work is one step of a loop, one pass of a calibration, or what was posted: a portion of weights, a
chunk of a text; waiting for work is not. The less urgent of several models get a part of the time.
Pure Python.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar
from weakref import ReferenceType, ref

from omlx.draft_length import MAX_DRAFT_LENGTH
from omlx.engine.device_errors import DEVICE, kind_of
from omlx.engine.types import URGENCY_RATIO
from omlx.errors import EngineDead, EngineError

if TYPE_CHECKING:
    from omlx.engine.loop import EngineLoop
    from omlx.engine.step.row import Row

SLOWER: Final = 20
"""Times an estimate that work may take: a machine that swaps is slow, and does not hang."""

ENDING_SLOWER: Final = 2
"""The same once the server is ending."""

LOOK_S: Final = 1.0
"""Longest time that counts between two looks: the process was stopped or starved in between."""


@dataclass(frozen=True, slots=True)
class HangBounds:
    """Seconds that a piece of work may take; more where `SLOWER` times its estimate is more.

    `unknown_s` counts where nothing like it was measured: the first long prompt of a large model,
    and posted work, which reads from disks that sleep. `ending_s` counts once the server is ending.
    """

    known_s: float = 60.0
    unknown_s: float = 600.0
    ending_s: float = 6.0


@dataclass(slots=True, eq=False)
class Work:
    """One piece of work: a step of `loop`, or a post (None). Keeps no model in memory."""

    loop: ReferenceType[EngineLoop] | None = None


class Heartbeat:
    """The piece of work in progress, written by the engine thread; any thread may read it."""

    def __init__(self) -> None:
        self.work: Work | None = None

    def begin(self, loop: EngineLoop | None = None) -> None:
        """Note that the next piece of work begins: a step of `loop`, or a post (None)."""
        self.work = Work(None if loop is None else ref(loop))

    def end(self) -> None:
        """Note that the thread waits for work."""
        self.work = None


class Watchdog:
    """Tells a hang from slow work, by the time that `look` has seen one piece of work in progress.

    Used by one thread, which calls `look` several times a second. `ending`: the server ends.
    """

    def __init__(
        self,
        heartbeat: Heartbeat,
        bounds: HangBounds | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ending = False
        self._heartbeat = heartbeat
        self._bounds = bounds or HangBounds()
        self._clock = clock
        self._work: Work | None = None
        self._seen_s = 0.0
        self._looked_at = clock()

    def look(self) -> EngineDead | None:
        """Return the failure of an engine thread that hangs; None while it does not."""
        now, work = self._clock(), self._heartbeat.work
        if work is self._work:
            self._seen_s += min(now - self._looked_at, LOOK_S)
        else:
            self._work, self._seen_s = work, 0.0
        self._looked_at = now
        least_s = self._bounds.ending_s if self.ending else self._bounds.known_s
        if work is None or self._seen_s <= least_s:  # no estimate is asked for
            return None
        bound_s = self._bound_s(work)
        if self._seen_s <= bound_s:
            return None
        return EngineDead("engine.hung", seconds=round(self._seen_s), limit=round(bound_s))

    def _bound_s(self, work: Work) -> float:
        bounds, loop = self._bounds, None if work.loop is None else work.loop()
        estimate, slowest = None, 0.0
        if loop is not None:
            with suppress(RuntimeError):  # the thread has changed what is read here: no hang
                estimate = step_estimate(loop)
                # None is slower than a prefill token by token.
                token_s = loop.cost_model.target.plain(_context(loop)) or 0.0
                slowest = _prompts(loop) * token_s
        if self.ending:
            return max(bounds.ending_s, ENDING_SLOWER * (estimate or 0.0))
        if estimate is None:
            return max(bounds.unknown_s, slowest)
        return max(bounds.known_s, SLOWER * estimate)


def step_estimate(loop: EngineLoop) -> float | None:
    """Estimate the seconds that a step of `loop` waits for the device, by its cost model.

    None where no such pass was measured. Any thread may call: the thread of the loop is waiting.
    """
    table, running, prompts = loop.cost_model.target, loop.scheduler.running, _prompts(loop)
    if any(row.request.spans for row in _reading(loop)):
        return None  # the table knows nothing of a tower that looks at images
    if prompts and not table.reaches(prompts):
        return None
    widest = (MAX_DRAFT_LENGTH + 1) * max(1, len(running))
    return table.seconds(prompts + widest, _context(loop))


def _reading(loop: EngineLoop) -> list[Row]:
    """The rows whose prompt is being read, or was read last."""
    running = list(loop.scheduler.running)
    return [row for row in running if len(row.tokens) == row.prompt_len]


def _prompts(loop: EngineLoop) -> int:
    """The most tokens of prompts that a step reads."""
    tokens = sum(row.prompt_len for row in _reading(loop))
    return min(tokens, loop.limits.prefill_chunk)


def _context(loop: EngineLoop) -> int:
    return max((len(row.tokens) for row in list(loop.scheduler.running)), default=1)


T = TypeVar("T")

Post: TypeAlias = Callable[[], None]


class Call(Generic[T]):
    """A post with a `future` of its result, or of its error.

    After a `question`, which only reads, a calibration continues.
    """

    def __init__(self, work: Callable[[], T], inbox: Inbox, *, question: bool) -> None:
        self.future: Future[T] = Future()
        self.question = question
        self._work = work
        self._inbox = inbox

    def __call__(self) -> None:
        """Do the work, unless cancelled or after the engine's death. Raises nothing."""
        if not self.future.set_running_or_notify_cancel():
            return
        self._inbox.call = self
        try:
            if self._inbox.failure is not None:
                raise self._inbox.failure
            resolve = partial(self.future.set_result, self._work())
        except BaseException as error:  # noqa: BLE001 — the future raises it
            DEVICE.note(error)
            if (kind := kind_of(error)) is not None:
                error = EngineError("device.error", kind=str(kind))
            resolve = partial(self.future.set_exception, error)
        with suppress(InvalidStateError):  # `fail` has ended a call that hung
            resolve()
        self._inbox.call = None

    def fail(self, failure: EngineDead) -> None:
        """Fail a call that hangs, unless done."""
        with suppress(InvalidStateError):
            self.future.set_exception(failure)


class Inbox(queue.SimpleQueue[Post]):
    """Posts in order; any thread may put some. `call` is running; `failure`: the thread's death."""

    def __init__(self, heartbeat: Heartbeat) -> None:
        super().__init__()
        self.call: Call[Any] | None = None
        self.failure: EngineDead | None = None
        self._heartbeat = heartbeat

    def work_on(self, post: Post) -> None:
        """Run a post on the engine thread."""
        self._heartbeat.begin()
        post()
        self._heartbeat.end()

    def run_all(self) -> None:
        """Run the remaining posts, after the end of the engine thread."""
        with suppress(queue.Empty):
            while True:
                self.get_nowait()()


class Turns:
    """Seconds of steps by model, while models of different urgency have work."""

    def __init__(self) -> None:
        self._held_s: dict[int, float] = {}  # since a held model's newest step, by id
        self._step_s: dict[int, float] = {}  # of the newest step

    def due(self, busy: Sequence[EngineLoop]) -> Sequence[EngineLoop]:
        """Return the loops to step now: the most urgent, and others that are due."""
        if len(busy) < 2:
            self._held_s.clear()
            return busy
        urgent = min(loop.urgency for loop in busy)
        return [loop for loop in busy if loop.urgency == urgent or self._may_step(loop)]

    def stepped(self, loop: EngineLoop, busy: Sequence[EngineLoop], seconds: float) -> None:
        """Record a step of `loop` beside other `busy` loops."""
        self._step_s[id(loop)], self._held_s[id(loop)] = seconds, 0.0
        for other in busy:
            if other is not loop:
                self._held_s[id(other)] = self._held_s.get(id(other), 0.0) + seconds

    def forget(self, loop: EngineLoop) -> None:
        """Drop the times of a model that is unloaded."""
        self._held_s.pop(id(loop), None)
        self._step_s.pop(id(loop), None)

    def _may_step(self, loop: EngineLoop) -> bool:
        held_s = self._held_s.get(id(loop), 0.0)
        return loop.frees_memory or held_s >= URGENCY_RATIO * self._step_s.get(id(loop), held_s)
