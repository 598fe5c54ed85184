"""POST /api/chat and /api/generate."""

from __future__ import annotations

from functools import partial
from time import monotonic

from fastapi import Request
from starlette.responses import JSONResponse, Response

from omlx.errors import BadRequest
from omlx.models.pool.pool import Pool
from omlx.server.dialects.ollama.request import ChatRequest, GenerateRequest, Generating
from omlx.server.endpoints.model_cards import ModelCard, ModelCards
from omlx.server.endpoints.responder import Responder
from omlx.server.http.body import read_body
from omlx.server.http.connection import while_connected
from omlx.server.request.exchange import Exchange
from omlx.server.request.fields import read


class GenerationEndpoints:
    def __init__(self, responder: Responder, pool: Pool, cards: ModelCards) -> None:
        self._responder = responder
        self._pool = pool
        self._cards = cards

    async def chat(self, request: Request) -> Response:
        """The model's answer to a conversation, in Ollama's dialect."""
        return await self._respond(request, ChatRequest)

    async def generate(self, request: Request) -> Response:
        """The model's answer to a prompt, in Ollama's dialect."""
        return await self._respond(request, GenerateRequest)

    async def _respond(self, request: Request, kind: type[Generating]) -> Response:
        body, exchange = await read_body(request, partial(_parse, kind))
        card = await self._cards.one(body.id)
        keep_s, model = body.keep_s, card.entry.id
        if exchange is None:
            return await self._load(request, body, card)
        if body.think and not card.reasoning:
            raise BadRequest("ollama.no_thinking", param="think", model=model)
        response = await self._responder.respond(request, exchange)
        if keep_s is not None:
            self._pool.residents.keep(model, keep_s)
        return response

    async def _load(self, request: Request, body: Generating, card: ModelCard) -> Response:
        """Load the model, or unload it where it is not to be kept."""
        started_at, keep_s, model = monotonic(), body.keep_s, card.entry.id
        if keep_s != 0:
            await while_connected(request.receive, self._pool.load(model))
        if keep_s is not None:
            self._pool.residents.keep(model, keep_s)  # of 0 seconds: once its requests have ended
        reason = "unload" if keep_s == 0 else "load"
        return JSONResponse(body.no_answer(card.id, reason, (monotonic() - started_at) * 1000))


def _parse(kind: type[Generating], content: bytes) -> tuple[Generating, Exchange | None]:
    body = read(kind, content)
    return body, None if body.empty else body.exchange()
