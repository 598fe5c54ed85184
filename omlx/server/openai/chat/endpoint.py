"""POST /v1/chat/completions."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import Response

from omlx.server.openai.chat import request as chat_request
from omlx.server.responder import Responder


class ChatEndpoint:
    def __init__(self, responder: Responder) -> None:
        self._responder = responder

    async def chat_completions(self, request: Request) -> Response:
        """The model's answer to a conversation."""
        body = chat_request.parse(await request.body())
        return await self._responder.respond(request, body.exchange())
