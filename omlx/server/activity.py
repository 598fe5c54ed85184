"""Requests in progress and statistics of finished ones, for metrics, model status and dashboard.

Lives on the event loop and sees the events that streams see, once a step; it asks nothing of the
engine.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
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
from omlx.telemetry.metrics import Metrics
from omlx.telemetry.timeline import Timeline

MAX_ANSWERS: Final = 256
"""Newest answers over all models, for the dashboard's list."""

MAX_RECENT: Final = 32
"""Newest answers of each model, for its status."""


@dataclass(slots=True)
class Running:
    """A request in progress. Times are monotonic, in seconds; None before the first token.

    `read` of the `prompt` tokens are in the cache, as far as events have arrived. `drafted` of the
    generated `tokens` were proposed by a drafter. `opening` tokens came with the first event.
    """

    id: str
    model: str
    prompt: int
    submitted_at: float
    read: int = 0
    tokens: int = 0
    drafted: int = 0
    first_token_at: float | None = None
    last_token_at: float | None = None
    opening: int = 0

    @property
    def started(self) -> bool:
        """Whether the engine has read or generated a token, as far as events have arrived."""
        return self.read > 0 or self.tokens > 0

    @property
    def rate(self) -> float | None:
        """Tokens per second since the first ones; None until more have followed."""
        if self.first_token_at is None or self.last_token_at is None:
            return None
        seconds = self.last_token_at - self.first_token_at
        if seconds <= 0:
            return None
        return (self.tokens - self.opening) / seconds


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished request, `at` seconds since the epoch."""

    at: float
    model: str
    reason: FinishReason
    stats: RequestStats


@dataclass(slots=True)
class Totals:
    """Tokens since the server started: of prompts, restored from prefix caches, generated."""

    prompt: int = 0
    cached: int = 0
    predicted: int = 0


class Activity:
    """`clock` is monotonic, `wall` the time of day; both in seconds."""

    def __init__(
        self,
        metrics: Metrics,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        max_answers: int = MAX_ANSWERS,
    ) -> None:
        self.totals = Totals()
        self.timeline = Timeline(wall)
        self._metrics = metrics
        self._clock = clock
        self._wall = wall
        self._running: dict[str, Running] = {}
        self._answers: deque[Answer] = deque(maxlen=max_answers)
        self._recent: defaultdict[str, deque[RequestStats]] = defaultdict(
            lambda: deque(maxlen=MAX_RECENT)
        )

    @property
    def running(self) -> Sequence[Running]:
        """Requests in progress, in order of submission."""
        return tuple(self._running.values())

    def answers(self, since: float = 0.0) -> Sequence[Answer]:
        """Answers that ended at `since` (seconds since the epoch) or later, the newest last."""
        return [answer for answer in self._answers if answer.at >= since]

    def recent(self, model: str) -> Sequence[RequestStats]:
        """The newest answers of a model, the newest last."""
        return tuple(self._recent.get(model, ()))

    def submitted(self, model: str, request: Request) -> None:
        """Add a request that is about to be handed to the engine."""
        self._running[request.id] = Running(request.id, model, len(request.tokens), self._clock())

    def observe(self, event: Event) -> None:
        """Take in an engine event, also of a request whose client has disconnected."""
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
                self._finished(running.model, reason, stats)
            case Failed():
                del self._running[running.id]

    def _committed(self, running: Running, event: TokensCommitted) -> None:
        now, tokens, drafted = self._clock(), len(event.tokens), sum(event.drafted)
        if running.first_token_at is None:
            running.first_token_at, running.opening, running.read = now, tokens, running.prompt
        running.last_token_at = now
        running.tokens += tokens
        running.drafted += drafted
        self.timeline.add(tokens, drafted)

    def _finished(self, model: str, reason: FinishReason, stats: RequestStats) -> None:
        self.totals.prompt += stats.prompt_n
        self.totals.cached += stats.cached_n
        self.totals.predicted += stats.predicted_n
        self._answers.append(Answer(self._wall(), model, reason, stats))
        self._recent[model].append(stats)
        self._metrics.finished(model, reason.value, stats)
