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

from .live import SHOWN_S, WAITING, Live, answer_view, current_rate, request_views, step_views


class LiveFigures:
    """Collects them, on the event loop."""

    def __init__(self, services: Services) -> None:
        self._engine = services.engine
        self._pool = services.pool
        self._activity = services.activity

    def now(self, since: float = 0.0) -> Live:
        """Return answers that ended after `since`, and steps that may have grown since then."""
        activity, now = self._activity, time.time()
        served = [model.id for model in self._pool.loaded]
        queued = {model: self._engine.request_counts(model).waiting for model in served}
        requests = request_views(activity.running, queued)
        waiting = sum(request.phase == WAITING for request in requests)
        loading = sum(self._pool.status(entry.id).waiting for entry in self._pool.models)
        begin = max(since, now - SHOWN_S)
        return Live(
            now=now,
            rate=current_rate(activity, now),
            active=len(requests) - waiting,
            waiting=waiting + loading,
            used_bytes=self._pool.used_bytes,
            limit_bytes=self._pool.limit_bytes,
            prompt=activity.totals.prompt,
            cached=activity.totals.cached,
            requests=requests,
            steps=step_views(activity.timeline.since(begin - 2 * STEP_S)),
            answers=[answer_view(end) for end in activity.answers(begin) if end.at > since],
        )


class LiveQuery(Body):
    """`since` is the `now` of the previous answer."""

    since: Annotated[float, Field(ge=0)] = 0.0


@dataclass(frozen=True, slots=True)
class LiveApi:
    figures: LiveFigures

    def register(self, router: APIRouter) -> None:
        router.add_api_route("/live", self.show, methods=["GET"])

    async def show(self, request: Request) -> Response:
        since = read_query(LiveQuery, request.query_params).since
        return JSONResponse(asdict(self.figures.now(since)))
