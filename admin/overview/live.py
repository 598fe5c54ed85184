"""Live figures as plain data: active requests, throughput, latest requests, memory.

Times in seconds since the epoch, rates in tokens per second, shares between 0 and 1; None for what
is not known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from omlx.errors import Reason
from omlx.models.pool.resident import ModelStatus
from omlx.server.activity import Activity, Running
from omlx.server.outcome import CLIENT_GONE, OK, Outcome
from omlx.telemetry.timeline import STEP_S, Step
from omlx.trial.trial import State, Trial

MIN_RATE_TOKENS: Final = 16
"""Fewer output tokens make no rate: one pass may commit several, in a time near 0."""

MIN_PROPOSED_TOKENS: Final = 8
"""Fewer draft tokens make no acceptance rate and no speed-up."""

WAITING, READING, WRITING = "waiting", "reading", "writing"
MINUTE_S: Final = 60
SHOWN_S: Final = 600
"""Length of the charts."""


@dataclass(frozen=True, slots=True)
class RequestView:
    """An active request; `read` of its `prompt` tokens are computed or restored.

    `drafted` of its `tokens` were accepted draft tokens.
    """

    id: str
    model: str
    phase: str
    prompt: int
    read: int
    tokens: int
    drafted: int
    rate: float | None


@dataclass(frozen=True, slots=True)
class LoadingView:
    """A model that is being loaded, for `waiting` requests. `share` is read; None: unknown."""

    model: str
    share: float | None
    waiting: int


@dataclass(frozen=True, slots=True)
class TrialView:
    """The newest trial of this run; `share` of its samples are measured. `left_s` in seconds.

    `reason` says why it failed.
    """

    model: str
    state: State
    share: float
    left_s: float | None
    reason: Reason | None


@dataclass(frozen=True, slots=True)
class StepView:
    """Throughput from `at` on, for `STEP_S` or a minute; `drafted` is that of drafted tokens."""

    at: int
    rate: float
    drafted: float


@dataclass(frozen=True, slots=True)
class AnswerView:
    """An ended request. `outcome` is a code of the catalog: why it failed, or whether speculation
    ran.

    `path` is the address of a request that the engine has not seen.
    """

    at: float
    status: int
    seconds: float
    model: str | None
    path: str | None
    prompt: int | None
    cached: int | None
    tokens: int
    first_token_s: float | None
    rate: float | None
    acceptance: float | None
    speedup: float | None
    outcome: str
    params: Mapping[str, object]

    @property
    def state(self) -> str:
        """A key below `ui.status.`."""
        if self.status == OK:
            return "ok"
        return "cancelled" if self.status == CLIENT_GONE else "failed"

    @property
    def cached_share(self) -> float | None:
        """Share of the prompt that came from the prefix cache."""
        if not self.prompt or self.cached is None:
            return None
        return self.cached / self.prompt

    @property
    def is_failure(self) -> bool:
        return self.state == "failed"


@dataclass(frozen=True, slots=True)
class Live:
    """`cached` of the `prompt` tokens since the start of the server came from the prefix cache.

    `waiting` counts the requests in queues and those of `loading`.
    """

    now: float
    rate: float
    active: int
    waiting: int
    used_bytes: int
    limit_bytes: int
    prompt: int
    cached: int
    requests: Sequence[RequestView]
    loading: Sequence[LoadingView]
    steps: Sequence[StepView]
    answers: Sequence[AnswerView]
    step_s: int = STEP_S
    shown_s: int = SHOWN_S


def request_views(running: Sequence[Running], queued: Mapping[str, int]) -> Sequence[RequestView]:
    """`queued` is the length of the engine's queue by model.

    Of the requests without an event so far, the last ones are those in the queue.
    """
    silent: defaultdict[str, list[str]] = defaultdict(list)
    for request in running:
        if not request.started:
            silent[request.model].append(request.id)
    waiting: set[str] = set()
    for model, ids in silent.items():
        waiting.update(ids[max(0, len(ids) - queued.get(model, 0)) :])
    return [_request_view(request, request.id in waiting) for request in running]


def loading_view(model: str, status: ModelStatus) -> LoadingView:
    share, progress = None, status.progress
    if progress is not None and progress.total:
        share = progress.done / progress.total
    return LoadingView(model, share, status.waiting)


def trial_view(trial: Trial) -> TrialView:
    share = trial.done / trial.total
    return TrialView(trial.plan.model, trial.state, share, trial.left_s, trial.reason)


def step_views(steps: Sequence[Step]) -> Sequence[StepView]:
    return [StepView(step.at, step.tokens / STEP_S, step.drafted / STEP_S) for step in steps]


def minutes(steps: Sequence[StepView]) -> Sequence[StepView]:
    """Average steps by the minute, the newest first, without minutes that have no tokens."""
    by_minute: defaultdict[int, list[StepView]] = defaultdict(list)
    for step in steps:
        by_minute[step.at // MINUTE_S * MINUTE_S].append(step)
    averages = []
    for at, part in sorted(by_minute.items(), reverse=True):
        rate, drafted = sum(step.rate for step in part), sum(step.drafted for step in part)
        averages.append(StepView(at, rate * STEP_S / MINUTE_S, drafted * STEP_S / MINUTE_S))
    return averages


def current_rate(activity: Activity, now: float) -> float:
    """Return the throughput of all requests in the last complete step."""
    last = int(now) // STEP_S * STEP_S - STEP_S
    return sum(step.tokens for step in activity.timeline.since(last) if step.at == last) / STEP_S


def answer_view(ended: Outcome) -> AnswerView:
    rate = acceptance = speedup = cached = None
    reason = ended.error or Reason("ui.answers.cancelled")
    if ended.stats is not None:
        stats, cached = ended.stats, ended.stats.cached_n
        if stats.predicted_ms and stats.predicted_n >= MIN_RATE_TOKENS:
            rate = 1000 * (stats.predicted_n - 1) / stats.predicted_ms
        if stats.proposed >= MIN_PROPOSED_TOKENS:
            acceptance, speedup = stats.acceptance_rate, stats.speedup
        if ended.status == OK:
            reason = stats.speculation
    return AnswerView(
        at=ended.at,
        status=ended.status,
        seconds=ended.seconds,
        model=ended.model,
        path=ended.path,
        prompt=ended.prompt,
        cached=cached,
        tokens=ended.tokens,
        first_token_s=ended.first_token_s,
        rate=rate,
        acceptance=acceptance,
        speedup=speedup,
        outcome=reason.code,
        params=reason.params,
    )


def _request_view(request: Running, waiting: bool) -> RequestView:
    phase = READING
    if waiting:
        phase = WAITING
    elif request.tokens:
        phase = WRITING
    return RequestView(
        id=request.id,
        model=request.model,
        phase=phase,
        prompt=request.prompt,
        read=request.read,
        tokens=request.tokens,
        drafted=request.drafted,
        rate=request.rate,
    )
