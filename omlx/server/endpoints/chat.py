"""POST /v1/chat/completions."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import Response

from omlx.server.dialects.openai import chat_request as chat_request
from omlx.server.endpoints.responder import Responder
from omlx.server.http.body import read_body


class ChatEndpoint:
    def __init__(self, responder: Responder) -> None:
        self._responder = responder

    async def chat_completions(self, request: Request) -> Response:
        """The model's answer to a conversation."""
        exchange = await read_body(request, lambda body: chat_request.parse(body).exchange())
        return await self._responder.respond(request, exchange)
