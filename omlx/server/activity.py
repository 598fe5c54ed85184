"""What the server is doing: the requests that run, and what came of the latest ones.

Lives on the event loop and hears what the streams hear, once a step; it asks nothing of the engine.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from omlx.engine.types import (
    Event,
    Failed,
    Finished,
    FinishReason,
    PrefillProgress,
    Request,
    TokensCommitted,
)
from omlx.records import RequestStats
from omlx.telemetry.timeline import Timeline

ANSWERS: Final = 256


@dataclass(slots=True)
class Running:
    """One request. Times are monotonic, in seconds; `first` and `last` those of its tokens, None before there are any.

    `read` of the `prompt` tokens are in the cache, as far as has been heard. `drafted` of the generated `tokens` were.
    """

    id: str
    model: str
    prompt: int
    began: float
    read: int = 0
    tokens: int = 0
    drafted: int = 0
    first: float | None = None
    last: float | None = None
    opening: int = 0

    @property
    def heard(self) -> bool:
        """Whether the engine has begun with it, as far as is known."""
        return self.read > 0 or self.tokens > 0

    @property
    def rate(self) -> float | None:
        """Tokens per second since the first ones came; None before there are more."""
        if self.first is None or self.last is None or self.last <= self.first:
            return None
        return (self.tokens - self.opening) / (self.last - self.first)


@dataclass(frozen=True, slots=True)
class Answer:
    """One that has ended, `at` seconds since the epoch."""

    at: float
    model: str
    reason: FinishReason
    stats: RequestStats


@dataclass(slots=True)
class Totals:
    """Since the server began, in tokens: what was asked, what of it was there already, what was answered."""

    prompt: int = 0
    cached: int = 0
    predicted: int = 0


class Activity:
    """`clock` is monotonic, `wall` tells the time of day; both in seconds."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        kept: int = ANSWERS,
    ) -> None:
        self.totals = Totals()
        self.timeline = Timeline(wall)
        self._clock = clock
        self._wall = wall
        self._running: dict[str, Running] = {}
        self._answers: deque[Answer] = deque(maxlen=kept)

    @property
    def running(self) -> Sequence[Running]:
        """In the order in which they came."""
        return tuple(self._running.values())

    def answers(self, since: float = 0.0) -> Sequence[Answer]:
        """Those that ended at `since` or later, the newest last."""
        return [answer for answer in self._answers if answer.at >= since]

    def began(self, model: str, request: Request) -> None:
        self._running[request.id] = Running(request.id, model, len(request.tokens), self._clock())

    def heard(self, event: Event) -> None:
        running = self._running.get(event.request_id)
        if running is None:
            return
        match event:
            case PrefillProgress(done=done):
                running.read = done
            case TokensCommitted():
                self._committed(running, event)
            case Finished(reason=reason, stats=stats):
                del self._running[running.id]
                self.totals.prompt += stats.prompt_n
                self.totals.cached += stats.cached_n
                self.totals.predicted += stats.predicted_n
                self._answers.append(Answer(self._wall(), running.model, reason, stats))
            case Failed():
                del self._running[running.id]

    def _committed(self, running: Running, event: TokensCommitted) -> None:
        now, tokens, drafted = self._clock(), len(event.tokens), sum(event.drafted)
        if running.first is None:
            running.first, running.opening, running.read = now, tokens, running.prompt
        running.last = now
        running.tokens += tokens
        running.drafted += drafted
        self.timeline.add(tokens, drafted)
