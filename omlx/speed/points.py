"""What a benchmark measures: prompt lengths and streams, as far as context and memory allow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import TYPE_CHECKING, Final

from omlx.engine.memory.guard import stepped
from omlx.engine.piece import Layout
from omlx.errors import Reason
from omlx.measure.interleave import rotate

if TYPE_CHECKING:
    from omlx.engine.loop import EngineLoop

SIZES: Final = (1024, 4096, 16_384, 32_768, 65_536, 131_072)
"""Tokens of the prompts."""
STREAMS: Final = (1, 4)
ANSWER_TOKENS: Final = 64
ROUNDS: Final = 3
REPEATED: Final = 4096
"""Tokens up to which prompts are measured in `ROUNDS` rounds; longer ones take minutes, once."""


class Mode(StrEnum):
    """`DRAFTED`: with speculation as the model's settings have it."""

    PLAIN = "plain"
    DRAFTED = "drafted"


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """A prompt length in tokens, and how many streams decode at once."""

    tokens: int
    streams: int


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A point that is not measured, and why."""

    point: Point
    reason: Reason


@dataclass(frozen=True, slots=True)
class Place:
    """A sample: its point, its mode, and the round, counted from 0. `cold`: nothing is cached."""

    point: Point
    mode: Mode
    number: int
    cold: bool = False


@dataclass(frozen=True, slots=True)
class Room:
    """What a loaded model has room for: tokens of context, rows, bytes of KV caches (None: any)."""

    context: int
    rows: int
    layout: Layout
    free_bytes: int | None

    @classmethod
    def of(cls, loop: EngineLoop) -> Room:
        """Ask the memory guard. Call it on the engine thread. Cached prefixes count as free."""
        guard, limits = loop.scheduler.queue.memory, loop.limits
        free_bytes = guard.headroom()
        if free_bytes is not None:
            free_bytes += sum(client.cached for client in guard.clients)
        layout = loop.scheduler.prefix.layout
        return cls(limits.context_length, limits.max_rows, layout, free_bytes)

    def refusal(self, point: Point) -> Reason | None:
        """Return why a point cannot be measured; None if it can."""
        tokens = point.tokens + ANSWER_TOKENS
        if tokens > self.context:
            return Reason("benchmark.context", {"tokens": tokens, "limit": self.context})
        if point.streams > self.rows:
            return Reason("benchmark.rows", {"streams": point.streams, "limit": self.rows})
        need = point.streams * self.layout.cache_bytes(stepped(tokens))
        if self.free_bytes is None or need <= self.free_bytes:
            return None
        need_gb, free_gb = round(need / 1e9, 1), round(max(0, self.free_bytes) / 1e9, 1)
        return Reason("benchmark.memory", {"need_gb": need_gb, "free_gb": free_gb})


def choose_points(room: Room, longest: int) -> tuple[list[Point], list[LeftOut]]:
    """Return the points with prompts of at most `longest` tokens, and those that do not fit."""
    points, left_out = [], []
    for point in _all_points(longest):
        reason = room.refusal(point)
        if reason is None:
            points.append(point)
        else:
            left_out.append(LeftOut(point, reason))
    return points, left_out


def _all_points(longest: int) -> Iterator[Point]:
    for tokens, streams in product(SIZES, STREAMS):
        if tokens <= longest:
            yield Point(tokens, streams)


def places(points: list[Point], modes: tuple[Mode, ...]) -> Iterator[Place]:
    """Yield all samples in order: modes take turns, and one stream alone reads each prompt first.

    The samples of a round share their prompt, which the first of them prefills.
    """
    for tokens in sorted({point.tokens for point in points}):
        here = [point for point in points if point.tokens == tokens]
        for number in range(ROUNDS if tokens <= REPEATED else 1):
            cold = True
            for point, mode in product(here, rotate(modes, number)):
                yield Place(point, mode, number, cold)
                cold = False
