"""POST /v1/messages and /v1/messages/count_tokens: read the body, generate, answer in
Anthropic's dialect."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import JSONResponse, Response

from omlx.server.dialects.anthropic import request as message_request
from omlx.server.endpoints.responder import Responder
from omlx.server.http.body import read_body
from omlx.server.http.connection import while_connected
from omlx.server.request.generation import GenerationService


class MessageEndpoints:
    def __init__(self, responder: Responder, generations: GenerationService) -> None:
        self._responder = responder
        self._generations = generations

    async def messages(self, request: Request) -> Response:
        """The model's answer to a conversation, in Anthropic's dialect."""
        exchange = await read_body(request, lambda body: message_request.parse(body).exchange())
        return await self._responder.respond(request, exchange)

    async def count_tokens(self, request: Request) -> Response:
        """The number of prompt tokens of a message request. Nothing is generated."""
        conversation = await read_body(
            request, lambda body: message_request.parse(body).generation_request()
        )
        work = self._generations.prompt_ids(conversation)
        tokens = await while_connected(request.receive, work)
        return JSONResponse({"input_tokens": len(tokens)})
