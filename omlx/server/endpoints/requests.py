"""Requests in progress: listed, and cancelled by id. Named keys see only their own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from omlx.errors import NotFound, Stopped
from omlx.server.http.body import Json
from omlx.server.http.guard import is_named, key_of
from omlx.server.request.activity import Activity, Running
from omlx.server.request.generation import SHOWN_ID, GenerationService
from omlx.server.request.usage import optional_reason


class RequestEndpoints:
    """GET /v1/requests, and POST /v1/requests/ID/cancel."""

    def __init__(self, activity: Activity, generations: GenerationService) -> None:
        self._activity = activity
        self._generations = generations

    async def list_requests(self, request: Request) -> Response:
        """List responses in progress, in order of submission."""
        groups = groupby(self._own(request.scope), key=lambda running: running.group)
        data = [self._record(list(choices)) for _, choices in groups]
        return JSONResponse({"object": "list", "data": data})

    async def cancel(self, request: Request) -> Response:
        """Cancel a response; the client gets an error. Raises NotFound."""
        id = request.path_params["id"]
        caller = self._generations.caller(id)
        key = key_of(request.scope) if is_named(request.scope) else None
        if caller is None or key not in (None, caller.key):
            raise NotFound("request.gone", id=id[:SHOWN_ID])
        self._generations.stop(id, Stopped("request.cancelled"))
        return JSONResponse({"id": id, "object": "request", "cancelled": True})

    def _own(self, scope: Scope) -> Sequence[Running]:
        running = self._activity.running
        if not is_named(scope):
            return running
        return [each for each in running if each.caller.key == key_of(scope)]

    def _record(self, choices: Sequence[Running]) -> Json:
        first = choices[0]
        progress = self._activity.progress(first.group)
        return {
            "id": first.group,
            "object": "request",
            "model": first.model,
            "client": first.caller.client,
            "priority": first.priority,
            "guess": optional_reason(first.guess),
            "seconds": round(self._activity.clock() - first.arrived_at, 3),
            "prompt_tokens": first.prompt,
            "completion_tokens": sum(choice.tokens for choice in choices),
            "prompt_progress": None if progress is None else progress.to_json(),
        }
