"""The endpoints of the Responses API: create, show, list input items, delete, cancel."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Final, Literal

from fastapi import Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from omlx.errors import BadRequest, OmlxError
from omlx.server import sse
from omlx.server.body import read_body
from omlx.server.connection import while_connected
from omlx.server.dialect import NAMED, Encoder, Json
from omlx.server.errors import field_error
from omlx.server.fields import Body, read_query
from omlx.server.generation import GenerationService
from omlx.server.openai.responses import request as response_request
from omlx.server.openai.responses.encoder import ResponseEncoder
from omlx.server.openai.responses.replay import Replay
from omlx.server.openai.responses.request import ResponseRequest
from omlx.server.openai.responses.store import Open, ResponseStore
from omlx.server.responder import Exchange, Responder
from omlx.server.stream import GenerationStream

ID_PREFIX: Final = "resp_"
_SHOWN: Final = 20
"""Ids that an error names."""


class Page(Body):
    """The part of a list that a client asks for: at most `limit` items after item `after`."""

    order: Literal["asc", "desc"] = "desc"
    limit: Annotated[int, Field(ge=1, le=100)] = 20
    after: str | None = None

    def of(self, items: Sequence[Json]) -> Json:
        """The page as the API's object; `items`: the oldest first.

        Raises BadRequest for an unknown `after`.
        """
        ordered = list(items) if self.order == "asc" else list(reversed(items))
        if self.after is not None:
            ids = [item["id"] for item in ordered]
            if self.after not in ids:
                raise field_error("request.value", "after", expected=", ".join(ids[:_SHOWN]))
            ordered = ordered[ids.index(self.after) + 1 :]
        data = ordered[: self.limit]
        ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {}
        return {"object": "list", "data": data, "has_more": len(ordered) > len(data), **ends}


class Following(Body):
    """The query of a reader that has the events up to number `starting_after`."""

    starting_after: Annotated[int, Field(ge=-1)] = -1


class ResponseEndpoints:
    """`store` holds finished responses and those in progress, of one application."""

    def __init__(self, responder: Responder, generations: GenerationService) -> None:
        self.store = ResponseStore()
        self._generations = generations
        self._responder = responder
        self._tasks: set[asyncio.Task[None]] = set()

    async def create(self, request: Request) -> Response:
        """A response: whole, as a stream, or generated after the answer to this request
        (`background`)."""
        lifetime, exchange = await read_body(request, self._read)
        if not lifetime.background:
            return await self._responder.respond(request, exchange)
        stream = await self._responder.open(request, exchange)
        replay = Replay()
        encoder = lifetime.encoder(stream, replay)
        task = asyncio.create_task(_generate(stream, encoder, lifetime, replay))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if exchange.stream:
            return self._follow(replay)
        return JSONResponse(encoder.response)

    async def input_tokens(self, request: Request) -> Response:
        """The number of prompt tokens of a response. Nothing is generated."""
        _, exchange = await read_body(request, self._read)
        work = self._generations.prompt_ids(exchange.generation)
        tokens = await while_connected(request.receive, work)
        return JSONResponse({"object": "response.input_tokens", "input_tokens": len(tokens)})

    async def compact(self, request: Request) -> Response:
        """Refused: a compacted conversation is the work of OpenAI's models."""
        raise BadRequest("response.no_compaction")

    def _read(self, content: bytes) -> tuple[_Lifetime, Exchange]:
        body = response_request.parse(content)
        body = body.model_copy(update={"input": self.store.resolved(body.items)})
        conversation = body.conversation(self.store.before(body.previous_response_id))
        lifetime = _Lifetime(self.store, body, conversation)
        exchange = Exchange(
            body.generation_request(conversation),
            bool(body.stream),
            ID_PREFIX,
            lifetime.encoder,
            NAMED,
            lifetime.ended,
        )
        return lifetime, exchange

    async def show(self, request: Request, id: str) -> Response:
        """A response; with `stream`, its events from `starting_after` on, of one that is generated
        in the background or was streamed from there."""
        if request.query_params.get("stream") != "true":
            return JSONResponse(self.store.get(id))
        after = read_query(Following, request.query_params).starting_after
        replay = self.store.replay(id)
        if replay is None:
            raise BadRequest("response.no_stream", param="stream")
        return self._follow(replay, after + 1)

    def _follow(self, replay: Replay, start: int = 0) -> Response:
        """A stream whose end does not end the response."""
        return sse.EventStream(replay.frames(start, self._responder.keep_alive_s), lambda: None)

    async def items(self, request: Request, id: str) -> Response:
        return JSONResponse(read_query(Page, request.query_params).of(self.store.items(id)))

    async def delete(self, request: Request, id: str) -> Response:
        self.store.delete(id)
        return JSONResponse({"id": id, "object": "response", "deleted": True})

    async def cancel(self, request: Request, id: str) -> Response:
        """Cancel a response in progress; a finished one is returned unchanged."""
        running = self.store.open.get(id)
        if running is None:
            return JSONResponse(self.store.get(id))
        running.stream.close()
        running.encoder.response["status"] = "cancelled"
        return JSONResponse(running.encoder.response)


class _Lifetime:
    """One response from its first event until it is stored."""

    def __init__(
        self, store: ResponseStore, body: ResponseRequest, conversation: list[Json]
    ) -> None:
        self._store, self._body, self._conversation = store, body, conversation
        self.background = bool(body.background)

    def encoder(self, stream: GenerationStream, replay: Replay | None = None) -> ResponseEncoder:
        encoder = self._body.encoder(stream)
        self._store.open[stream.id] = Open(stream, encoder, replay)
        return encoder

    def ended(self, encoder: Encoder) -> None:
        """Store the response if the request says so and it has a final status."""
        assert isinstance(encoder, ResponseEncoder)
        response = encoder.response
        running = self._store.open.pop(response["id"], None)
        if running is None or not self._body.stored:
            return
        if response["status"] != "in_progress":
            items = [item.as_output() for item in self._body.items]
            numbered = [{"id": f"{response['id']}_in_{i}"} | item for i, item in enumerate(items)]
            replay = running.replay if self._body.stream else None
            self._store.keep(response, numbered, self._conversation, replay)


async def _generate(
    stream: GenerationStream, encoder: ResponseEncoder, lifetime: _Lifetime, replay: Replay
) -> None:
    """Generate a response in the background."""
    try:
        replay.add(encoder.start())
        async for batch in stream.batches():
            replay.add(encoder.feed(batch))
    except OmlxError as error:
        replay.add(encoder.failed(error))
    finally:
        stream.close()
        lifetime.ended(encoder)
        replay.end()
