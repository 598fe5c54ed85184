"""Live figures as plain data: active requests, throughput, latest requests, memory.

Times in seconds since the epoch, rates in tokens per second, shares between 0 and 1; None for what
is not known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from omlx.errors import Reason
from omlx.server.activity import Activity
from omlx.telemetry.timeline import STEP_S, Step
from omlx.trial.trial import State, Trial

from ..activity.request_views import AnswerView, LoadingView, RequestView

MINUTE_S: Final = 60
SHOWN_S: Final = 600
"""Length of the charts."""


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
