"""POST /v1/completions."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import Response

from omlx.server.body import read_body
from omlx.server.openai.completions import request as completion_request
from omlx.server.responder import Responder


class CompletionEndpoint:
    def __init__(self, responder: Responder) -> None:
        self._responder = responder

    async def completions(self, request: Request) -> Response:
        """The model's continuation of a text."""
        exchange = await read_body(request, lambda body: completion_request.parse(body).exchange())
        return await self._responder.respond(request, exchange)
