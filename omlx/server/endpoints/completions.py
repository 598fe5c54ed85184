"""POST /v1/completions."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import Response

from omlx.server.dialects.openai import completions_request as completion_request
from omlx.server.endpoints.responder import Responder
from omlx.server.http.body import read_body


class CompletionEndpoint:
    def __init__(self, responder: Responder) -> None:
        self._responder = responder

    async def completions(self, request: Request) -> Response:
        """The model's continuation of a text."""
        exchange = await read_body(request, lambda body: completion_request.parse(body).exchange())
        return await self._responder.respond(request, exchange)
