"""POST /v1/messages and /v1/messages/count_tokens: read the body, generate, answer in
Anthropic's dialect."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import JSONResponse, Response

from omlx.server.anthropic import message_request
from omlx.server.connection import while_connected
from omlx.server.generation import GenerationService
from omlx.server.responder import Responder


class MessageEndpoints:
    def __init__(self, responder: Responder, generations: GenerationService) -> None:
        self._responder = responder
        self._generations = generations

    async def messages(self, request: Request) -> Response:
        """The model's answer to a conversation, in Anthropic's dialect."""
        body = message_request.parse(await request.body())
        return await self._responder.respond(request, body.exchange())

    async def count_tokens(self, request: Request) -> Response:
        """The number of prompt tokens of a message request. Nothing is generated."""
        body = message_request.parse(await request.body())
        work = self._generations.prompt_ids(body.generation_request())
        tokens = await while_connected(request.receive, work)
        return JSONResponse({"input_tokens": len(tokens)})
