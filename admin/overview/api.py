"""API of the live figures, polled by charts. It reads counters; no engine step waits for it."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from omlx.server.fields import Body, read_query
from omlx.server.services import Services
from omlx.telemetry.timeline import STEP_S

from ..activity.request_views import WAITING, answer_view
from ..activity.requests import Requests
from .live import SHOWN_S, Live, current_rate, step_views


class LiveFigures:
    """Collects them, on the event loop."""

    def __init__(self, services: Services) -> None:
        self.requests = Requests(services)
        self._pool = services.pool
        self._activity = services.activity

    def now(self, since: float = 0.0, at: float | None = None) -> Live:
        """Return answers that ended after `since`, and steps that may have grown since then.

        `at`: an earlier moment, after which no answer and no step counts; everything else is of
        this moment.
        """
        activity, now = self._activity, time.time()
        if at is not None:
            now = min(now, at)
        requests = self.requests.active()
        waiting = sum(request.phase == WAITING for request in requests)
        loading = self.requests.loading()
        begin = max(since, now - SHOWN_S)
        steps = activity.timeline.since(begin - 2 * STEP_S)
        ended = activity.outcomes(begin)
        return Live(
            now=now,
            rate=current_rate(activity, now),
            active=len(requests) - waiting,
            waiting=waiting + sum(model.waiting for model in loading),
            used_bytes=self._pool.used_bytes,
            limit_bytes=self._pool.limit_bytes,
            prompt=activity.totals.prompt,
            cached=activity.totals.cached,
            requests=requests,
            loading=loading,
            steps=step_views([step for step in steps if step.at <= now]),
            answers=[answer_view(end) for end in ended if since < end.at <= now],
        )


class LiveQuery(Body):
    """`since` is the `now` of the previous answer, `at` the moment of the figures on the page."""

    since: Annotated[float, Field(ge=0)] = 0.0
    at: Annotated[float | None, Field(ge=0)] = None


@dataclass(frozen=True, slots=True)
class LiveApi:
    figures: LiveFigures

    def register(self, router: APIRouter) -> None:
        router.add_api_route("/live", self.show, methods=["GET"])

    async def show(self, request: Request) -> Response:
        query = read_query(LiveQuery, request.query_params)
        return JSONResponse(asdict(self.figures.now(query.since, query.at)))
