"""The endpoints of the Responses API: made, looked at, cancelled, forgotten."""

from __future__ import annotations

import asyncio
from typing import Final

from fastapi import Request
from starlette.responses import JSONResponse, Response

from omlx.errors import BadRequest, OmlxError
from omlx.server.dialect import NAMED, Encoder, Json
from omlx.server.fields import read_query
from omlx.server.openai.responses import request as response_request
from omlx.server.openai.responses.encoder import ResponseEncoder
from omlx.server.openai.responses.page import Page
from omlx.server.openai.responses.request import ResponseRequest
from omlx.server.openai.responses.store import Open, ResponseStore
from omlx.server.responder import Exchange, Responder, collect
from omlx.server.stream import GenerationStream

PREFIX: Final = "resp_"


class ResponseEndpoints:
    """`store` holds finished responses and those in progress, of one application."""

    def __init__(self, responder: Responder) -> None:
        self.store = ResponseStore()
        self._responder = responder
        self._tasks: set[asyncio.Task[None]] = set()

    async def create(self, request: Request) -> Response:
        """Answer at once, as a stream, or later (`background`). Raises OmlxError."""
        body = response_request.parse(await request.body())
        body = body.model_copy(update={"input": self.store.resolved(body.items)})
        conversation = body.conversation(self.store.before(body.previous_response_id))
        making = _Making(self.store, body, conversation)
        exchange = Exchange(
            body.generation_request(conversation),
            bool(body.stream),
            PREFIX,
            making.encoder,
            NAMED,
            making.ended,
        )
        if not body.background:
            return await self._responder.respond(request, exchange)
        stream = await self._responder.open(request, exchange)
        encoder = making.encoder(stream)
        task = asyncio.create_task(_finish(stream, encoder, making))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return JSONResponse(encoder.response)

    async def show(self, request: Request, id: str) -> Response:
        if request.query_params.get("stream") == "true":
            raise BadRequest("response.no_stream", param="stream")
        return JSONResponse(self.store.get(id))

    async def items(self, request: Request, id: str) -> Response:
        return JSONResponse(read_query(Page, request.query_params).of(self.store.items(id)))

    async def delete(self, request: Request, id: str) -> Response:
        self.store.delete(id)
        return JSONResponse({"id": id, "object": "response", "deleted": True})

    async def cancel(self, request: Request, id: str) -> Response:
        """End a response that is being made; one that has ended stays as it is."""
        if (running := self.store.open.get(id)) is None:
            return JSONResponse(self.store.get(id))
        running.stream.close()
        running.encoder.response["status"] = "cancelled"
        return JSONResponse(running.encoder.response)


class _Making:
    """One response from its beginning to its end."""

    def __init__(
        self, store: ResponseStore, body: ResponseRequest, conversation: list[Json]
    ) -> None:
        self._store, self._body, self._conversation = store, body, conversation

    def encoder(self, stream: GenerationStream) -> ResponseEncoder:
        encoder = self._body.encoder(stream)
        self._store.open[stream.id] = Open(stream, encoder)
        return encoder

    def ended(self, encoder: Encoder) -> None:
        """However it ended: it is kept if it is to be."""
        assert isinstance(encoder, ResponseEncoder)
        response = encoder.response
        if self._store.open.pop(response["id"], None) is None or not self._body.kept:
            return
        if response["status"] != "in_progress":
            self._store.keep(response, self._items(response["id"]), self._conversation)

    def _items(self, id: str) -> list[Json]:
        return [{"id": f"{id}_in_{at}"} | item.kept() for at, item in enumerate(self._body.items)]


async def _finish(stream: GenerationStream, encoder: ResponseEncoder, making: _Making) -> None:
    try:
        encoder.body(await collect(stream))
    except OmlxError as error:
        encoder.failed(error)
    finally:
        stream.close()
        making.ended(encoder)
