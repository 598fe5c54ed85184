"""Interleaved pairs. One case is a list of pairs (ours, mlx-lm's), each pair the same work on both sides.

    trial 1   A B   B A   A B …      one pair after another, the order alternating from pair to pair and trial to trial
    trial 2   B A   A B   B A …      a trial's figure is the sum over its pairs; a ratio is taken within each trial

On both sides the clock starts when every row has its first tokens, prefill behind it, and stops when the first row
ends; the tokens that arrive in between are counted. So all rows are busy all the time that is measured.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from functools import reduce
from math import nan

import mlx.core as mx
from mlx_lm.generate import generation_stream

WARM_UP = -1
"""The trial number of the round before the first, which is not counted."""


@dataclass(frozen=True, slots=True)
class Run:
    """One side of a pair, or the sum of several. `tokens` by row; `total_s` includes the prefill.

    `cpu_s` is the processor time of the calling thread: what the host did, without waiting for the device.
    """

    tokens: tuple[tuple[int, ...], ...]
    counted: int
    seconds: float
    cpu_s: float
    total_s: float
    proposed: int = 0
    accepted: int = 0

    def __add__(self, other: Run) -> Run:
        return Run(
            self.tokens + other.tokens,
            self.counted + other.counted,
            self.seconds + other.seconds,
            self.cpu_s + other.cpu_s,
            self.total_s + other.total_s,
            self.proposed + other.proposed,
            self.accepted + other.accepted,
        )


class Meter:
    """Takes the tokens of a run as they arrive, and the time."""

    def __init__(self, rows: int) -> None:
        self._tokens: list[list[int]] = [[] for _ in range(rows)]
        self._submitted = time.perf_counter()
        self._first: tuple[float, float] | None = None
        self._last = (0.0, 0.0)
        self._over = False
        self._counted = 0

    def starts_with(self, rows: Iterable[int]) -> bool:
        """Whether tokens of these rows, should they arrive, start the clock."""
        busy = {row for row, tokens in enumerate(self._tokens) if tokens}
        return self._first is None and len(busy.union(rows)) == len(self._tokens)

    def arrived(self, new: Mapping[int, Iterable[int]], *, ended: bool) -> None:
        """Take what one step brought, by row. `ended`: a row ends with it."""
        now = (time.perf_counter(), time.thread_time())
        before = sum(map(len, self._tokens))
        for row, tokens in new.items():
            self._tokens[row].extend(tokens)
        if self._first is None:
            if all(self._tokens):
                self._first = self._last = now
        elif not self._over:
            self._counted += sum(map(len, self._tokens)) - before
            self._last = now
        self._over = self._over or ended

    def run(self, proposed: int = 0, accepted: int = 0) -> Run:
        total = time.perf_counter() - self._submitted
        wall, cpu = self._first or self._last
        tokens = tuple(map(tuple, self._tokens))
        return Run(
            tokens,
            self._counted,
            self._last[0] - wall,
            self._last[1] - cpu,
            total,
            proposed,
            accepted,
        )


Side = Callable[[int], Run]
"""Does the work once. Takes the number of the trial, which serves as the seed."""


def tokens_per_second(run: Run) -> float:
    """NaN for a run that ended with its first tokens: there was nothing to time."""
    return run.counted / run.seconds if run.seconds else nan


@dataclass(frozen=True, slots=True)
class Case:
    """What to measure. `metric` turns the sum of a trial's runs into its figure; `baseline` names the other side."""

    suite: str
    name: str
    baseline: str
    pairs: Seq[tuple[Side, Side]]
    params: Mapping[str, int | float] = field(default_factory=dict)
    unit: str = "tok/s"
    metric: Callable[[Run], float] = tokens_per_second
    smaller_is_better: bool = False


@dataclass(frozen=True, slots=True)
class Measured:
    """The runs of a case: by trial, then by pair."""

    case: Case
    ours: tuple[tuple[Run, ...], ...]
    theirs: tuple[tuple[Run, ...], ...]


def measure(case: Case, trials: int, tick: Callable[[], object]) -> Measured:
    """Run a case: one round to warm up, then `trials`. Calls `tick` after every pair."""
    ours: list[tuple[Run, ...]] = []
    theirs: list[tuple[Run, ...]] = []
    for trial in range(WARM_UP, trials):
        gc.collect()
        pairs = [
            _pair(pair, trial, swap=(trial + i) % 2 == 0, tick=tick)
            for i, pair in enumerate(case.pairs)
        ]
        if trial != WARM_UP:
            ours.append(tuple(a for a, _ in pairs))
            theirs.append(tuple(b for _, b in pairs))
    return Measured(case, tuple(ours), tuple(theirs))


def total(runs: Iterable[Run]) -> Run:
    return reduce(Run.__add__, runs)


def settle() -> None:
    """Wait until the device is idle, and leave nothing of the other side in MLX's pool of buffers."""
    mx.synchronize()
    mx.synchronize(generation_stream)
    mx.clear_cache()


def _pair(
    pair: tuple[Side, Side], trial: int, swap: bool, tick: Callable[[], object]
) -> tuple[Run, Run]:
    a, b = pair
    if swap:
        second, first = _settled(b, trial), _settled(a, trial)
    else:
        first, second = _settled(a, trial), _settled(b, trial)
    tick()
    return first, second


def _settled(side: Side, trial: int) -> Run:
    settle()
    return side(max(trial, 0))
