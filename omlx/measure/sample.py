"""One timed run of requests, the meter that times it, and the comparison of answers.

The clock starts when every row has its first token (prefill is not part of the rate) and stops when
the first row ends, so all rows are busy throughout. Tokens in between are counted.
"""

from __future__ import annotations

import time
import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import nan
from typing import Generic, TypeVar

from omlx.measure import load
from omlx.measure.load import BUSY_SHARE

Place = TypeVar("Place")


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
        self._processors = load.processor_times()
        self._submitted = time.perf_counter()
        self._start: tuple[float, float] | None = None  # wall and processor time, seconds
        self._end = (0.0, 0.0)
        self._ended = False
        self._counted = 0

    def would_start(self, rows: Iterable[int]) -> bool:
        """Return whether tokens of `rows`, arriving now, would start the clock."""
        busy = {row for row, tokens in enumerate(self._tokens) if tokens}
        return self._start is None and len(busy.union(rows)) == len(self._tokens)

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
        others_s, machine_s = load.others_since(self._processors)
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
    """`same` of `of` answers equal their references.

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


def checksum(answers: Iterable[Iterable[int]]) -> str:
    """Return the CRC-32 of all tokens in order."""
    value = 0
    for tokens in answers:
        # -1 marks the end of an answer.
        value = zlib.crc32(array("q", [*tokens, -1]).tobytes(), value)
    return f"{value:08x}"
