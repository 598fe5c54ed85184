"""What a page shows that is live: requests, speeds, the latest answers, memory. Pure: what is known in, plain data out.

Times are seconds since the epoch, rates tokens per second, shares between 0 and 1; what is not known is None, never 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from omlx.server.activity import Activity, Answer, Running
from omlx.telemetry.timeline import STEP_S, Step

WAITING, READING, WRITING = "waiting", "reading", "writing"
MINUTE_S: Final = 60
SHOWN_S: Final = 600
"""How far back the charts go."""


@dataclass(frozen=True, slots=True)
class RequestView:
    """`read` of the `prompt` tokens are read; of the generated `tokens`, `drafted` were accepted drafts."""

    id: str
    model: str
    phase: str
    prompt: int
    read: int
    tokens: int
    drafted: int
    rate: float | None


Requests: TypeAlias = Sequence[RequestView]


@dataclass(frozen=True, slots=True)
class StepView:
    """Tokens per second over the `STEP_S` seconds from `at` on, and how many of those were drafted."""

    at: int
    rate: float
    drafted: float


@dataclass(frozen=True, slots=True)
class AnswerView:
    """`outcome` is the code that says whether speculation ran; `acceptance` is None where nothing was drafted."""

    at: float
    model: str
    prompt: int
    cached: int
    tokens: int
    rate: float | None
    acceptance: float | None
    speedup: float | None
    outcome: str
    params: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Live:
    """`cached` of the `prompt` tokens since the server began were not computed."""

    now: float
    rate: float
    active: int
    waiting: int
    used_bytes: int
    limit_bytes: int
    prompt: int
    cached: int
    requests: Requests
    steps: Sequence[StepView]
    answers: Sequence[AnswerView]
    step_s: int = STEP_S
    shown_s: int = SHOWN_S


def requests(running: Sequence[Running], queued: Mapping[str, int]) -> Requests:
    """`queued` says how many requests of a model are in line. Of those that nothing was heard of, the last ones are."""
    unheard: defaultdict[str, list[str]] = defaultdict(list)
    for each in running:
        if not each.started:
            unheard[each.model].append(each.id)
    in_line = {
        id
        for model, ids in unheard.items()
        for id in ids[max(0, len(ids) - queued.get(model, 0)) :]
    }
    return [_request(each, each.id in in_line) for each in running]


def steps(since: Sequence[Step]) -> Sequence[StepView]:
    return [StepView(step.at, step.tokens / STEP_S, step.drafted / STEP_S) for step in since]


def minutes(recent: Sequence[StepView]) -> Sequence[StepView]:
    """The same by the minute, the newest first; a minute without a token is left out."""
    by_minute: defaultdict[int, list[StepView]] = defaultdict(list)
    for step in recent:
        by_minute[step.at // MINUTE_S * MINUTE_S].append(step)
    share = STEP_S / MINUTE_S
    return [
        StepView(
            at,
            share * sum(step.rate for step in steps),
            share * sum(step.drafted for step in steps),
        )
        for at, steps in sorted(by_minute.items(), reverse=True)
    ]


def rate(activity: Activity, now: float) -> float:
    """Of all requests together, in the last step that is over."""
    last = int(now) // STEP_S * STEP_S - STEP_S
    return sum(step.tokens for step in activity.timeline.since(last) if step.at == last) / STEP_S


def answer(ended: Answer) -> AnswerView:
    stats = ended.stats
    return AnswerView(
        at=ended.at,
        model=ended.model,
        prompt=stats.prompt_n,
        cached=stats.cached_n,
        tokens=stats.predicted_n,
        rate=1000 * (stats.predicted_n - 1) / stats.predicted_ms if stats.predicted_ms else None,
        acceptance=stats.acceptance_rate,
        speedup=stats.speedup if stats.proposed else None,
        outcome=stats.speculation.code,
        params=stats.speculation.params,
    )


def _request(running: Running, in_line: bool) -> RequestView:
    phase = WAITING if in_line else WRITING if running.tokens else READING
    return RequestView(
        id=running.id,
        model=running.model,
        phase=phase,
        prompt=running.prompt,
        read=running.read,
        tokens=running.tokens,
        drafted=running.drafted,
        rate=running.rate,
    )
