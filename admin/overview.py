"""The first page: live figures, latest requests, models in memory, the server's addresses.

A machine without models of its own is offered some. Times in seconds since the epoch, rates in
tokens per second, shares between 0 and 1; None: not known.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Final

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from omlx.catalog import data_dir
from omlx.errors import Reason
from omlx.measure.runner import Measurements
from omlx.measure.runner import State as TrialState
from omlx.measure.trial import Trial
from omlx.models.pool.footprint import MemoryParts
from omlx.models.pool.served import State
from omlx.server.request.activity import Activity
from omlx.server.request.fields import Body
from omlx.server.services import Services
from omlx.telemetry.usage import STEP_S, Span

from .download import FirstView, first_view
from .models.list_page import ModelRow, model_row
from .models.model_snapshot import ModelSnapshot, ModelSnapshots, suggested
from .views import WAITING, AnswerView, LoadingView, Requests, RequestView, answer_view
from .web.addresses import HOME, PARTS
from .web.pages import Pages, page

MAX_ANSWERS: Final = 50
"""Rows of the table of latest requests."""

FIRST_ANSWERS: Final = 10
"""Rows in the page itself, for a fast first view; the refreshed part has all."""

ENDED_SHOWN_S: Final = 120
"""Seconds — how long the end of a trial is shown among active requests."""

MINUTE_S: Final = 60

SHOWN_S: Final = 600
"""Seconds covered by the charts."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """The first steps. `model`: the suggested first model, None if there is none.

    `alone`: the page has nothing else to show yet.
    """

    model: str | None
    loading: bool = False
    alone: bool = True


@dataclass(frozen=True, slots=True)
class OverviewView:
    """`address`: of the server, as the browser reached it; `trial`: this run's newest.

    `has_charts`: the chart library is installed. `first` is None in the refreshed part.
    """

    live: Live
    trial: TrialView | None
    welcome: Welcome | None
    resident: Sequence[ModelRow]
    minutes: Sequence[StepView]
    answers: Sequence[AnswerView]
    address: str
    has_charts: bool
    first: FirstView | None = None


@dataclass(frozen=True, slots=True)
class OverviewPage:
    services: Services
    requests: Requests
    snapshots: ModelSnapshots
    measurements: Measurements

    def register(self, pages: Pages, api: APIRouter) -> None:
        pages.route(HOME, page("overview/page.html", self._whole, "overview"))
        pages.part(f"{PARTS}/overview", page("overview/live.html", self._live))
        pages.part(f"{PARTS}/overview/first", page("overview/first.html", self._first))
        api.add_api_route("/live", self.live, methods=["GET"])

    async def live(self, request: Request) -> Response:
        """Return live figures, polled by charts: counters, for which no engine step waits."""
        query = LiveQuery.of_query(request.query_params)
        return JSONResponse(asdict(self.figures(query.since, query.at)))

    async def _whole(self, request: Request) -> OverviewView:
        first = await self._first(request)
        return replace(await self._view(request, FIRST_ANSWERS), first=first)

    async def _live(self, request: Request) -> OverviewView:
        return await self._view(request, MAX_ANSWERS)

    async def _first(self, request: Request) -> FirstView:
        return await first_view(self.services.downloads, self.snapshots.pool)

    async def _view(self, request: Request, answers: int) -> OverviewView:
        pool, resident = self.snapshots.pool, await self.snapshots.resident()
        # Nothing is awaited from here on: figures, tables and charts are of one moment.
        live, latest = self.figures(), self.requests.latest(answers)
        models = [self.snapshots.default, *(snapshot.entry.id for snapshot in resident)]
        model = next(filter(None, models), None) or suggested(pool.models, live.limit_bytes)
        trial, shown = self.measurements.newest(Trial), None
        if trial is not None and not is_past(trial.ended_at):
            shown = TrialView(trial.model, trial.state, trial.share, trial.left_s, trial.reason)
        return OverviewView(
            live=live,
            trial=shown,
            welcome=welcome(live, resident, model, has_ended=bool(latest)),
            resident=[
                model_row(with_active(snapshot, live), self.snapshots.default)
                for snapshot in resident
            ],
            minutes=minutes(live.steps),
            answers=latest,
            address=str(request.base_url).rstrip("/"),
            has_charts=(data_dir("static") / "vendor" / "uplot").is_dir(),
        )

    def figures(self, since: float = 0.0, at: float | None = None) -> Live:
        """Return answers that ended after `since`, and steps that may have grown since then.

        `at`: an earlier moment, after which no answer and no step counts; all else is current.
        """
        activity, pool, now = self.services.activity, self.services.pool, time.time()
        if at is not None:
            now = min(now, at)
        requests = self.requests.active()
        waiting = sum(request.phase == WAITING for request in requests)
        loading = self.requests.loading()
        begin = max(since, now - SHOWN_S)
        # The latest steps of the previous answer may have grown since.
        steps = activity.timeline.since(begin - 2 * STEP_S)
        ended, parts = activity.outcomes(begin), pool.memory_parts
        return Live(
            now=now,
            rate=current_rate(activity, now),
            active=len(requests) - waiting,
            waiting=waiting + sum(model.waiting for model in loading),
            used_bytes=parts.total,
            memory=parts,
            limit_bytes=pool.limit_bytes,
            prompt=activity.totals.prompt,
            cached=activity.totals.cached,
            requests=requests,
            loading=loading,
            steps=step_views([step for step in steps if step.at <= now]),
            answers=[answer_view(end) for end in ended if since < end.at <= now],
        )


def is_past(ended_at: float | None) -> bool:
    """Whether a trial ended so long ago that requests in progress have nothing to do with it."""
    return ended_at is not None and time.monotonic() - ended_at > ENDED_SHOWN_S


def with_active(snapshot: ModelSnapshot, live: Live) -> ModelSnapshot:
    """Count the page's requests as `active`: a lease begins earlier and ends later."""
    active = sum(request.model == snapshot.entry.id for request in live.requests)
    return replace(snapshot, status=replace(snapshot.status, active=active))


def welcome(
    live: Live, resident: Sequence[ModelSnapshot], model: str | None, *, has_ended: bool = False
) -> Welcome | None:
    """Return None once a model is in memory or a request was answered.

    `has_ended`: a request has ended, whatever its outcome.
    """
    loaded = [model for model in resident if model.status.state is not State.LOADING]
    if live.prompt or loaded:
        return None
    alone = not (live.loading or live.waiting or has_ended)
    return Welcome(model, loading=bool(resident), alone=alone)


class LiveQuery(Body):
    """`since`: `now` of the previous answer; `at`: time of the page's figures."""

    since: Annotated[float, Field(ge=0)] = 0.0
    at: Annotated[float | None, Field(ge=0)] = None


@dataclass(frozen=True, slots=True)
class TrialView:
    """The newest trial of this run; `share` of its samples are measured.

    `left_s` in seconds. `reason`: why the trial failed.
    """

    model: str
    state: TrialState
    share: float
    left_s: float | None
    reason: Reason | None


@dataclass(frozen=True, slots=True)
class StepView:
    """Throughput from `at`, over `STEP_S` or a minute; `drafted`: of draft tokens."""

    at: int
    rate: float
    drafted: float


@dataclass(frozen=True, slots=True)
class Live:
    """`cached` of `prompt` tokens since the server's start came from the prefix cache.

    `waiting` counts requests in queues and those of `loading`.
    """

    now: float
    rate: float
    active: int
    waiting: int
    used_bytes: int
    memory: MemoryParts
    limit_bytes: int
    prompt: int
    cached: int
    requests: Sequence[RequestView]
    loading: Sequence[LoadingView]
    steps: Sequence[StepView]
    answers: Sequence[AnswerView]
    step_s: int = STEP_S
    shown_s: int = SHOWN_S


def step_views(steps: Sequence[Span]) -> Sequence[StepView]:
    return [StepView(step.at, step.tokens / STEP_S, step.drafted / STEP_S) for step in steps]


def minutes(steps: Sequence[StepView]) -> Sequence[StepView]:
    """Average steps by minute, newest first, without minutes that have no tokens."""
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
