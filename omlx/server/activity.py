"""Requests in progress and the outcomes of ended ones, for metrics, model status and dashboard.

Lives on the event loop. It sees the events that streams see, once a step, and requests that were
refused before they reached the engine; it asks nothing of the engine.
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
from omlx.errors import OmlxError
from omlx.records import RequestStats
from omlx.server.outcome import CLIENT_GONE, OK, Outcome, bounded_reason
from omlx.telemetry.metrics import Metrics
from omlx.telemetry.timeline import Timeline

MAX_OUTCOMES: Final = 256
"""Newest requests over all models that the engine ran, and as many that were refused before."""

MAX_RECENT: Final = 32
"""Newest finished requests of each model, for its status."""


@dataclass(slots=True)
class Running:
    """A request in progress. Times are monotonic, in seconds; None before the first token.

    `read` of the `prompt` tokens are in the cache, as far as events have arrived. `drafted` of the
    generated `tokens` were proposed by a drafter. `opening` tokens came with the first event.
    """

    id: str
    model: str
    prompt: int
    arrived_at: float
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
        max_outcomes: int = MAX_OUTCOMES,
    ) -> None:
        self.totals = Totals()
        self.timeline = Timeline(wall)
        self._metrics = metrics
        self.clock = clock
        self._wall = wall
        self._running: dict[str, Running] = {}
        self._ended: deque[Outcome] = deque(maxlen=max_outcomes)
        # A queue of their own: refusals, which cost nothing, must not push out what was answered.
        self._refused: deque[Outcome] = deque(maxlen=max_outcomes)
        self._recent: defaultdict[str, deque[RequestStats]] = defaultdict(
            lambda: deque(maxlen=MAX_RECENT)
        )

    @property
    def running(self) -> Sequence[Running]:
        """Requests in progress, in order of submission."""
        return tuple(self._running.values())

    def outcomes(self, since: float = 0.0) -> Sequence[Outcome]:
        """Requests that ended at `since` (seconds since the epoch) or later, the newest last."""
        ended = [outcome for outcome in (*self._ended, *self._refused) if outcome.at >= since]
        return sorted(ended, key=lambda outcome: outcome.at)

    def recent(self, model: str) -> Sequence[RequestStats]:
        """The newest finished requests of a model, the newest last."""
        return tuple(self._recent.get(model, ()))

    def submitted(self, model: str, request: Request, arrived_at: float | None = None) -> None:
        """Add a request that is about to be handed to the engine.

        `arrived_at` is when its body had arrived, on the clock of this object; by default now.
        """
        if arrived_at is None:
            arrived_at = self.clock()
        self._running[request.id] = Running(request.id, model, len(request.tokens), arrived_at)

    def refused(self, path: str, status: int, seconds: float, error: OmlxError | None) -> None:
        """Record a request that ended before the engine had it; no error: its client left."""
        reason = model = None
        if error is not None:
            reason = bounded_reason(error)
            model = reason.params.get("model")
        named = model if isinstance(model, str) else None
        outcome = Outcome(self._wall(), status, seconds, named, path, error=reason)
        self._refused.append(outcome)

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
                self._finished(running, reason, stats)
            case Failed(error=error):
                del self._running[running.id]
                self._ended.append(self._outcome(running, error.status, error=error))

    def _committed(self, running: Running, event: TokensCommitted) -> None:
        now, tokens, drafted = self.clock(), len(event.tokens), sum(event.drafted)
        if running.first_token_at is None:
            running.first_token_at, running.opening, running.read = now, tokens, running.prompt
        running.last_token_at = now
        running.tokens += tokens
        running.drafted += drafted
        self.timeline.add(tokens, drafted)

    def _finished(self, running: Running, reason: FinishReason, stats: RequestStats) -> None:
        self.totals.prompt += stats.prompt_n
        self.totals.cached += stats.cached_n
        self.totals.predicted += stats.predicted_n
        status = OK
        if reason is FinishReason.CANCELLED:
            status = CLIENT_GONE
        self._ended.append(self._outcome(running, status, stats=stats))
        self._recent[running.model].append(stats)
        self._metrics.finished(running.model, reason.value, stats)

    def _outcome(
        self,
        running: Running,
        status: int,
        *,
        stats: RequestStats | None = None,
        error: OmlxError | None = None,
    ) -> Outcome:
        first_token_s = None
        if running.first_token_at is not None:
            first_token_s = running.first_token_at - running.arrived_at
        return Outcome(
            at=self._wall(),
            status=status,
            seconds=self.clock() - running.arrived_at,
            model=running.model,
            prompt=running.prompt,
            tokens=running.tokens if stats is None else stats.predicted_n,
            first_token_s=first_token_s,
            stats=stats,
            error=None if error is None else bounded_reason(error),
        )
