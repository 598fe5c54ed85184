"""Requests in progress, outcomes of ended ones, programs that sent them.

For metrics, model status and dashboard. Lives on the event loop, and asks nothing of the engine:
sees the events of streams, once a step, and requests refused before they reached the engine.
"""

from __future__ import annotations

import itertools
import time
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from omlx.engine.types import (
    Event,
    Failed,
    Finished,
    FinishReason,
    PrefillProgress,
    PromptForecast,
    Request,
    TokensCommitted,
)
from omlx.errors import OmlxError, Reason
from omlx.records import RequestStats
from omlx.server.http.guard import DASHBOARD, Arrival, Caller
from omlx.server.request.usage import MIN_TOKENS, Progress, Reading
from omlx.telemetry.metrics import Metrics
from omlx.telemetry.usage import FAILURE, MAX_MINUTES, MINUTE_S, Timeline, Usage, UsageHistory
from omlx.text.events import OutputEvent, ReasoningDelta, TextDelta, ToolCallArguments

OK: Final = 200
FIRST_ERROR: Final = 400
CLIENT_GONE: Final = 499
"""Status of a request whose client disconnected before its response was complete."""

_SHOWN: Final = 200
"""Characters of a text that an error repeats and a record keeps."""


MAX_ANSWER: Final = 4000
"""Characters kept of an output."""


class AnswerText:
    """The beginning of an output: `reasoning`, and all else as `text`."""

    def __init__(self) -> None:
        self.reasoning = self.text = ""
        self._left = MAX_ANSWER

    def add(self, events: Iterable[OutputEvent]) -> None:
        for event in events:
            if isinstance(event, TextDelta | ReasoningDelta | ToolCallArguments) and self._left > 0:
                piece = event.text[: self._left]
                self._left -= len(piece)
                if isinstance(event, ReasoningDelta):
                    self.reasoning += piece
                else:
                    self.text += piece

    def __str__(self) -> str:
        return self.reasoning + self.text


@dataclass(frozen=True, slots=True)
class Outcome:
    """A request that ended `at` seconds since the epoch, `seconds` after it arrived.

    A request that the engine ran has a `model` and the length of its `prompt`; if it was refused
    before, `path` is its address. `first_token_s` is the time to first token. `error` says why it
    failed; it may hold names from the request, and no text of prompt or output. `id` is that of the
    response, `number` unique in this process, `finish` the finish reason of a complete answer.
    `answer` is the beginning of the output, where a setting allows to keep texts.
    """

    at: float
    status: int
    seconds: float
    model: str | None = None
    path: str | None = None
    prompt: int | None = None
    tokens: int = 0
    first_token_s: float | None = None
    stats: RequestStats | None = None
    error: Reason | None = None
    number: int = 0
    id: str | None = None
    arrival: Arrival = Arrival(0.0)  # noqa: RUF009 — frozen
    finish: str | None = None
    answer: AnswerText | None = None

    @property
    def prompt_text(self) -> str | None:
        texts = self.arrival.prompt
        return None if texts is None else "\n\n".join(map(str, texts))

    @property
    def failed(self) -> bool:
        """Whether the client got an error; a disconnected client got none."""
        return self.status >= FIRST_ERROR and self.status != CLIENT_GONE


def bounded_reason(error: OmlxError) -> Reason:
    """Return an error as a reason whose texts have a bounded length."""
    shown = {
        name: value[:_SHOWN] if isinstance(value, str) else value
        for name, value in error.params.items()
    }
    return Reason(error.code, shown)


MAX_OUTCOMES: Final = 256
"""Newest requests with a row, over all models, and as many others."""

MAX_RECENT: Final = 32
"""Newest finished requests of each model, for the status."""


@dataclass(slots=True)
class Running:
    """A request in progress. Times are monotonic, in seconds; None before the first token.

    `read` of the `prompt` tokens are in the cache, as far as events have arrived. `drafted` of the
    generated `tokens` were proposed by a drafter. `opening` tokens came with the first event.
    `group` is the id of the response, which may have several choices. `stopped` is the error with
    which the dashboard, a client or a time limit ended it.
    """

    id: str
    model: str
    prompt: int
    arrival: Arrival
    read: int = 0
    tokens: int = 0
    drafted: int = 0
    first_token_at: float | None = None
    last_token_at: float | None = None
    opening: int = 0
    group: str = ""
    answer: AnswerText | None = None
    stopped: OmlxError | None = None
    priority: int = 0
    reading: Reading = field(default_factory=Reading)

    def progress(self, now: float) -> Progress:
        """Return how far the prompt is, at `now` (monotonic seconds)."""
        return self.reading.progress(self.prompt, now, self.arrival.at)

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


MAX_PROGRAMS: Final = 64


@dataclass(frozen=True, slots=True)
class Seen:
    """A program: `client` is the first word of the User-Agent, such as `claude-cli/2.1.197`. Its
    newest request came `at` seconds since the epoch; `refused`: without an answer."""

    client: str
    at: float
    refused: bool


class LastSeen:
    """The programs heard of last, at most `MAX_PROGRAMS`."""

    def __init__(self) -> None:
        self._programs: OrderedDict[str, Seen] = OrderedDict()

    @property
    def programs(self) -> Sequence[Seen]:
        """The newest first."""
        return tuple(reversed(self._programs.values()))

    def note(self, client: str, at: float, *, refused: bool = False) -> None:
        """Record a request. Those of the dashboard, and without a User-Agent, are left out."""
        word = client.partition(" ")[0]
        if not word or word == DASHBOARD:
            return
        self._programs[word] = Seen(word, at, refused)
        self._programs.move_to_end(word)
        if len(self._programs) > MAX_PROGRAMS:
            self._programs.popitem(last=False)


class Activity:
    """Record of requests. `clock` is monotonic, `wall` the time of day; both in seconds.

    `totals` are of finished requests since the server started; `history` survives restarts.
    """

    def __init__(
        self,
        metrics: Metrics,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        max_outcomes: int = MAX_OUTCOMES,
        history: UsageHistory | None = None,
    ) -> None:
        self.totals = Usage()
        self.timeline = Timeline(wall)
        self.minutes = Timeline(wall, MINUTE_S, MAX_MINUTES)
        self.history = history or UsageHistory()
        self.seen = LastSeen()
        self._metrics = metrics
        self.clock = clock
        self._wall = wall
        self._running: dict[str, Running] = {}
        self._ended: deque[Outcome] = deque(maxlen=max_outcomes)
        # A queue of their own: refusals, which cost nothing, must not push out what was generated.
        self._others: deque[Outcome] = deque(maxlen=max_outcomes)
        self._numbers = itertools.count(1)
        self._recent: defaultdict[str, deque[RequestStats]] = defaultdict(
            lambda: deque(maxlen=MAX_RECENT)
        )

    @property
    def running(self) -> Sequence[Running]:
        """Requests in progress, in order of submission."""
        return tuple(self._running.values())

    def outcomes(self, since: float = 0.0) -> Sequence[Outcome]:
        """Requests that ended at `since` (seconds since the epoch) or later, the newest last."""
        ended = [outcome for outcome in (*self._ended, *self._others) if outcome.at >= since]
        return sorted(ended, key=lambda outcome: outcome.at)

    def outcome(self, number: int) -> Outcome | None:
        """Return the ended request of this number, if still kept."""
        return next((end for end in (*self._ended, *self._others) if end.number == number), None)

    def recent(self, model: str) -> Sequence[RequestStats]:
        """The newest finished requests of a model, the newest last."""
        return tuple(self._recent.get(model, ()))

    def submitted(
        self,
        model: str,
        request: Request,
        arrival: Arrival | None = None,
        answer: AnswerText | None = None,
    ) -> None:
        """Add a request before the engine gets it. `arrival`: on this clock, by default now."""
        arrival = arrival or Arrival(self.clock())
        self.heard_from(arrival.caller)
        self._running[request.id] = Running(
            request.id,
            model,
            len(request.tokens),
            arrival,
            group=request.group,
            answer=answer,
            priority=request.priority,
        )

    def forecast(self, request_id: str, forecast: PromptForecast) -> None:
        """Note when the first token of a request is expected."""
        if (running := self._running.get(request_id)) is not None:
            running.reading.forecast = forecast

    def progress(self, group: str) -> Progress | None:
        """Return the progress of a response with a long unread prompt, else None."""
        now = self.clock()
        reading = [
            running.progress(now)
            for running in self._running.values()
            if running.group == group and not running.tokens and running.prompt >= MIN_TOKENS
        ]
        return max(reading, key=lambda each: each.done, default=None)

    def heard_from(self, caller: Caller, *, refused: bool = False) -> None:
        """Note that a program sends requests."""
        self.seen.note(caller.client, self._wall(), refused=refused)

    def stopped(self, group: str, error: OmlxError) -> None:
        """Note that a response is about to be cancelled with this error."""
        for running in self._running.values():
            if running.group == group:
                running.stopped = error

    def answered(
        self,
        path: str,
        caller: Caller,
        status: int,
        seconds: float,
        error: OmlxError | None,
        named: str | None = None,
    ) -> None:
        """Record a request without a row: refused, left by the client, or with nothing to generate.

        The statistics count such requests without a model, whose name the client chose.
        """
        reason = None
        if error is not None:
            reason = bounded_reason(error)
            model = reason.params.get("model")
            named = model if isinstance(model, str) else named
        outcome = Outcome(
            self._wall(),
            status,
            seconds,
            None if named is None else named[:_SHOWN],
            path,
            error=reason,
            number=next(self._numbers),
            arrival=Arrival(self.clock() - seconds, caller),
        )
        self._others.append(outcome)
        self.history.add("", caller.key, FAILURE if outcome.failed else Usage(requests=1))

    def observe(self, event: Event) -> None:
        """Take in an engine event, also of a request whose client has disconnected."""
        running = self._running.get(event.request_id)
        if running is None:
            return
        match event:
            case PrefillProgress(done=done):
                running.read = done
                running.reading.note(done, self.clock())
            case TokensCommitted():
                self._committed(running, event)
            case Finished(reason=reason, stats=stats):
                del self._running[running.id]
                self._finished(running, reason, stats)
            case Failed(error=error):
                del self._running[running.id]
                self._ended.append(self._outcome(running, error.status, error=error))
                self.history.add(running.model, running.arrival.caller.key, FAILURE)

    def _committed(self, running: Running, event: TokensCommitted) -> None:
        now, tokens, drafted = self.clock(), len(event.tokens), sum(event.drafted)
        if running.first_token_at is None:
            running.first_token_at, running.opening, running.read = now, tokens, running.prompt
        running.last_token_at = now
        running.tokens += tokens
        running.drafted += drafted
        self.timeline.add(tokens, drafted)
        self.minutes.add(tokens, drafted)

    def _finished(self, running: Running, reason: FinishReason, stats: RequestStats) -> None:
        usage = Usage.of(stats)
        self.totals += usage
        if reason is FinishReason.CANCELLED:
            status = CLIENT_GONE if running.stopped is None else running.stopped.status
            outcome = self._outcome(running, status, stats, running.stopped)
        else:
            outcome = self._outcome(running, OK, stats, finish=reason.value)
        self._ended.append(outcome)
        self.history.add(running.model, running.arrival.caller.key, usage)
        self._recent[running.model].append(stats)
        self._metrics.finished(running.model, reason.value, stats)

    def _outcome(
        self,
        running: Running,
        status: int,
        stats: RequestStats | None = None,
        error: OmlxError | None = None,
        finish: str | None = None,
    ) -> Outcome:
        arrived_at, first_at = running.arrival.at, running.first_token_at
        return Outcome(
            at=self._wall(),
            status=status,
            seconds=self.clock() - arrived_at,
            model=running.model,
            prompt=running.prompt,
            tokens=running.tokens if stats is None else stats.predicted_n,
            first_token_s=None if first_at is None else first_at - arrived_at,
            stats=stats,
            error=None if error is None else bounded_reason(error),
            number=next(self._numbers),
            id=running.group,
            arrival=running.arrival,
            finish=finish,
            answer=running.answer,
        )
