"""What goes on in the server now, gathered for pages: once when a page is made, then once a second by whoever shows it.

It asks the event loop's own records, and the engine for nothing but a count of its lines: no step waits for a page.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from omlx.server.fields import Body, read_query
from omlx.server.services import Services
from omlx.telemetry.timeline import STEP_S

from ..login.routes import Gate
from . import live_view
from .live_view import SHOWN_S, Live


class LiveData:
    """Asks what there is to show. On the event loop."""

    def __init__(self, services: Services) -> None:
        self._engine = services.engine
        self._pool = services.pool
        self._activity = services.activity

    def now(self, since: float = 0.0) -> Live:
        """Of answers those that ended after `since`, of steps those that may have grown since then."""
        activity, wall = self._activity, time.time()
        queued = {
            served.id: self._engine.load_of(served.id).waiting for served in self._pool.loaded
        }
        requests = live_view.requests(activity.running, queued)
        begin = max(since, wall - SHOWN_S)
        return Live(
            now=wall,
            rate=live_view.rate(activity, wall),
            active=sum(request.phase != live_view.WAITING for request in requests),
            waiting=sum(request.phase == live_view.WAITING for request in requests)
            + self._at_the_door(),
            used_bytes=self._pool.used_bytes,
            limit_bytes=self._pool.limit_bytes,
            prompt=activity.totals.prompt,
            cached=activity.totals.cached,
            requests=requests,
            steps=live_view.steps(activity.timeline.since(begin - 2 * STEP_S)),
            answers=[live_view.answer(each) for each in activity.answers(begin) if each.at > since],
        )

    def _at_the_door(self) -> int:
        """Requests that wait for their model to be loaded."""
        return sum(self._pool.status(entry.id).waiting for entry in self._pool.models)


class Asked(Body):
    """What is new after `since`, the `now` of the answer before."""

    since: Annotated[float, Field(ge=0)] = 0.0


class LiveRoutes:
    def __init__(self, gate: Gate, data: LiveData) -> None:
        self._gate = gate
        self._data = data

    def routes(self) -> APIRouter:
        router = APIRouter(prefix="/admin/api")
        router.add_api_route("/live", self.show, methods=["GET"])
        return router

    async def show(self, request: Request) -> Response:
        self._gate.session(request)
        return JSONResponse(asdict(self._data.now(read_query(Asked, request.query_params).since)))
