"""Timed runs of requests, their meter, the comparison of answers, and the spread of rounds.

The clock starts when every row has its first token (prefill is not part of the rate) and stops when
the first row ends, so all rows are busy throughout. Tokens in between are counted. Sides take
turns, so that none always runs on the warmer machine.

Processor time of other programs shows a busy machine. Its sources, both for the whole machine in
ticks: `/proc/stat` (Linux), `host_statistics` (macOS).
"""

from __future__ import annotations

import ctypes
import math
import os
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, reduce
from math import nan
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

Place = TypeVar("Place")

BUSY_SHARE: Final = 0.15
"""Share of all processors — more use by other programs distorts a measurement."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A timed run, or the sum of several.

    `tokens` by row; `counted` of them arrived in `seconds`. `total_s` includes the prefill, `cpu_s`
    is the calling thread's processor time: host work without waiting for the device. `draft_error`:
    of a drafter, which then drafted no more for the answer. Other programs took `others_s` of the
    `machine_s` seconds of all processors, prefill included.
    """

    tokens: tuple[tuple[int, ...], ...]
    counted: int
    seconds: float
    cpu_s: float = 0.0
    total_s: float = 0.0
    proposed: int = 0
    accepted: int = 0
    draft_error: str | None = None
    others_s: float = 0.0
    machine_s: float = 0.0

    def __add__(self, other: Sample) -> Sample:
        return Sample(
            self.tokens + other.tokens,
            self.counted + other.counted,
            self.seconds + other.seconds,
            self.cpu_s + other.cpu_s,
            self.total_s + other.total_s,
            self.proposed + other.proposed,
            self.accepted + other.accepted,
            self.draft_error or other.draft_error,
            self.others_s + other.others_s,
            self.machine_s + other.machine_s,
        )

    @property
    def busy(self) -> bool:
        """Whether other programs took more than `BUSY_SHARE`: a repeat would not agree."""
        return self.others_s > BUSY_SHARE * self.machine_s

    @property
    def rate(self) -> float:
        """Tokens per second without prefill; NaN if the run ended with its first tokens."""
        if self.seconds > 0 and self.counted > 0:
            return self.counted / self.seconds
        return nan

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted of proposed tokens; None if nothing was proposed."""
        return self.accepted / self.proposed if self.proposed else None


def total(samples: Iterable[Sample]) -> Sample:
    """Add up at least one sample."""
    return reduce(Sample.__add__, samples)


class Meter:
    """Times a run whose tokens arrive step by step."""

    def __init__(self, rows: int) -> None:
        self._tokens: list[list[int]] = [[] for _ in range(rows)]
        self._processors = processor_times()
        self._submitted = time.perf_counter()
        self._start: tuple[float, float] | None = None  # wall and processor time, seconds
        self._end = (0.0, 0.0)
        self._ended = False
        self._counted = 0

    def add(self, arrived: Mapping[int, Iterable[int]], *, ended: bool) -> None:
        """Add the tokens of one step, by row. `ended`: a row ends with this step."""
        now = (time.perf_counter(), time.thread_time())
        before = sum(map(len, self._tokens))
        for row, tokens in arrived.items():
            self._tokens[row].extend(tokens)
        if self._start is None:
            if all(self._tokens):
                self._start = self._end = now
        elif not self._ended:
            self._counted += sum(map(len, self._tokens)) - before
            self._end = now
        self._ended = self._ended or ended

    def sample(self, proposed: int = 0, accepted: int = 0) -> Sample:
        """Return the finished run; `proposed` and `accepted` count its draft tokens."""
        total_s = time.perf_counter() - self._submitted
        others_s, machine_s = others_since(self._processors)
        wall, cpu = self._start or self._end
        return Sample(
            tokens=tuple(map(tuple, self._tokens)),
            counted=self._counted,
            seconds=self._end[0] - wall,
            cpu_s=self._end[1] - cpu,
            total_s=total_s,
            proposed=proposed,
            accepted=accepted,
            others_s=others_s,
            machine_s=machine_s,
        )


@dataclass(frozen=True, slots=True)
class Comparison(Generic[Place]):
    """Comparison of answers with references: `same` of `of` are equal.

    `first`: the first difference, as the answer's place and the token's index; None without any.
    """

    same: int
    of: int
    first: tuple[Place, int] | None


def compare(answers: Iterable[tuple[Place, Sequence[int], Sequence[int]]]) -> Comparison[Place]:
    """Compare answers with references, from (place, answer, reference)."""
    same, count, first = 0, 0, None
    for place, answer, reference in answers:
        count += 1
        token = first_difference(answer, reference)
        if token is None:
            same += 1
        elif first is None:
            first = (place, token)
    return Comparison(same, count, first)


def first_difference(answer: Sequence[int], reference: Sequence[int]) -> int | None:
    """Return the index of the first difference; None if equal.

    If one is a prefix of the other: the shorter length.
    """
    for place, (token, other) in enumerate(zip(answer, reference, strict=False)):
        if token != other:
            return place
    if len(answer) == len(reference):
        return None
    return min(len(answer), len(reference))


_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
_HOST_CPU_LOAD_INFO: Final = 3
_IDLE: Final = 2  # of user, system, idle, nice


@dataclass(frozen=True, slots=True)
class ProcessorTimes:
    """Seconds of all processors since boot: in total, idle, and of this process."""

    total: float
    idle: float
    own: float


def processor_times() -> ProcessorTimes | None:
    """Read the times; None on a system that does not report them."""
    try:
        ticks, idle = _darwin() if sys.platform == "darwin" else _linux()
    except (OSError, ValueError, IndexError, AttributeError):
        return None
    process = os.times()
    own = process.user + process.system + process.children_user + process.children_system
    return ProcessorTimes(ticks * _TICK_S, idle * _TICK_S, own)


def others_since(before: ProcessorTimes | None) -> tuple[float, float]:
    """Return processor seconds since `before`: of other programs, of all; 0 if unknown."""
    now = processor_times()
    if before is None or now is None:
        return 0.0, 0.0
    total = now.total - before.total
    others = total - (now.idle - before.idle) - (now.own - before.own)
    return max(0.0, others), max(0.0, total)


def _linux() -> tuple[int, int]:
    first = Path("/proc/stat").read_text("ascii").split("\n", 1)[0]
    ticks = [int(field) for field in first.split()[1:9]]  # ticks of guests are part of user's
    return sum(ticks), ticks[3] + ticks[4]  # idle, and idle while a disk is read


def _darwin() -> tuple[int, int]:
    ticks, count = (ctypes.c_uint32 * 4)(), ctypes.c_uint32(4)
    system, host = _mach_host()
    if system.host_statistics(host, _HOST_CPU_LOAD_INFO, ticks, ctypes.byref(count)) != 0:
        raise OSError("host_statistics")
    return sum(ticks), ticks[_IDLE]


@cache
def _mach_host() -> tuple[Any, int]:
    system = ctypes.CDLL(None)
    return system, system.mach_host_self()


Item = TypeVar("Item")

NOTABLE: Final = 1.05
"""Ratio — smaller differences do not count."""

NOISY_RATE: Final = 1.5
NOISY_SPEEDUP: Final = 4.0
"""Greatest / least value of the rounds — more, and a repeat would not agree.

Plain decoding takes the same time in each round; a speed-up depends on the text, too.
"""

TRIMMED_FROM: Final = 5
"""Values — from this count on, `Spread` leaves out the least and the greatest."""


def rotate(items: Sequence[Item], number: int) -> list[Item]:
    """Return `items` beginning with index `number`, modulo their count."""
    first = number % len(items)
    return [*items[first:], *items[:first]]


class Gain(StrEnum):
    """Meaning of a ratio to plain decoding. `UNCLEAR`: notable, but the spread covers 1."""

    FASTER = "faster"
    SLOWER = "slower"
    EVEN = "even"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and range of at least one value.

    From `TRIMMED_FROM` values on, the range omits both extremes: a single outlier decides nothing.
    """

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        ordered = sorted(values)
        if len(ordered) >= TRIMMED_FROM:
            ordered = ordered[1:-1]
        return cls(ordered[0], statistics.median(values), ordered[-1])

    def to_json(self, digits: int) -> dict[str, float]:
        return {
            "low": round(self.low, digits),
            "median": round(self.median, digits),
            "high": round(self.high, digits),
        }

    def noise(self, *, of_speedups: bool) -> float | None:
        """Return high / low of positive values if a repeat would not agree, else None."""
        factor = self.high / self.low
        return factor if factor > (NOISY_SPEEDUP if of_speedups else NOISY_RATE) else None

    @property
    def gain(self) -> Gain:
        """Meaning of the values as ratios to plain decoding."""
        if self.low > 1 and self.median >= NOTABLE:
            return Gain.FASTER
        if self.high < 1 and self.median <= 1 / NOTABLE:
            return Gain.SLOWER
        if 1 / NOTABLE < self.median < NOTABLE:
            return Gain.EVEN
        return Gain.UNCLEAR


def geometric_mean(values: Iterable[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))
