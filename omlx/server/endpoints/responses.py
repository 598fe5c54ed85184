"""The endpoints of the Responses API: create, show, list input items, delete, cancel."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Final, Literal

from fastapi import Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from omlx.errors import BadRequest, OmlxError
from omlx.server.dialects.openai.responses_encoder import ResponseEncoder
from omlx.server.dialects.openai.responses_items import Conversation
from omlx.server.dialects.openai.responses_request import ResponseRequest
from omlx.server.dialects.openai.responses_store import Open, ResponseStore
from omlx.server.endpoints.generation import Responder
from omlx.server.http.errors import field_error
from omlx.server.http.guard import caller_of, owner_of
from omlx.server.http.transport import Json, read_body, while_connected
from omlx.server.journal.answer import Answer
from omlx.server.journal.answers import SOURCE, Answers, Kept, LastEvent, last_event
from omlx.server.journal.journal import AnswerFile, Owned
from omlx.server.request.dialect import RESPONSES, Encoder, Exchange
from omlx.server.request.fields import Body
from omlx.server.request.stream import GenerationStream

ID_PREFIX: Final = "resp_"
_SHOWN: Final = 20
"""Ids that an error names."""


log = logging.getLogger("omlx.server")


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
    """The Responses API; `store` holds responses, finished and in progress."""

    def __init__(self, responder: Responder) -> None:
        self.store = ResponseStore(journal=responder.answers.journal)
        self.answers = responder.answers
        self._responder = responder

    async def restore(self) -> None:
        """Read the stored responses of an earlier process; responses in the background that it left
        continue. Call it once, before the first request."""
        if (journal := self.answers.journal) is None:
            return
        await self.store.restore(journal)
        for owned in await journal.run(AnswerFile.background) or ():
            self.answers.spawn(self._continue(owned))

    async def _continue(self, owned: Owned) -> None:
        """Continue a response in the background; if that fails, reading it says why."""
        try:
            await self.answers.reopen(None, owned, partial(self._read, owned.owner))
        except OmlxError as error:
            fields = {"id": owned.name, "reason": error.message}
            log.warning("a response in the background was not continued", extra={"fields": fields})

    async def create(self, request: Request) -> Response:
        """A response: whole, as a stream, or generated after the answer to this request
        (`background`)."""
        exchange = await self._exchange(request)
        if not exchange.background or exchange.stream:
            return await self._responder.respond(request, exchange)
        answer, source = await self.answers.open(request, exchange)
        return JSONResponse(self.store.get(answer.owned), headers={SOURCE: source})

    async def input_tokens(self, request: Request) -> Response:
        """The number of prompt tokens of a response. Nothing is generated."""
        exchange = await self._exchange(request)
        caller = caller_of(request.scope)
        work = self._responder.loops.prompt_ids(exchange.generation, caller)
        tokens = await while_connected(request.receive, work)
        return JSONResponse({"object": "response.input_tokens", "input_tokens": len(tokens)})

    async def compact(self, request: Request) -> Response:
        """Refused: a compacted conversation is the work of OpenAI's models."""
        raise BadRequest("response.no_compaction")

    async def _exchange(self, request: Request) -> Exchange:
        return await read_body(request, partial(self._read, owner_of(request.scope)))

    def _read(self, owner: str, content: bytes) -> Exchange:
        body = ResponseRequest.parse(content)
        if body.input is not None:
            body = body.model_copy(update={"input": self.store.resolved(owner, body.items)})
        before = []
        if body.previous_response_id is not None:
            before = self.store.before(Owned(owner, body.previous_response_id))
        conversation = body.conversation(before)
        lifetime = _Lifetime(self.store, self.answers, owner, body, conversation)
        return Exchange(
            body.generation_request(conversation),
            bool(body.stream),
            ID_PREFIX,
            lifetime.encoder,
            RESPONSES,
            lifetime.ended,
            kept=body.stored and bool(body.stream),
            background=bool(body.background),
        )

    async def show(self, request: Request, id: str) -> Response:
        """A response, which is continued if it was interrupted; with `stream`, its events from
        `starting_after` on.
        """
        owned = owned_by(request, id)
        if request.query_params.get("stream") != "true":
            if owned not in self.store:
                await self._reopen(request, owned)
            return JSONResponse(self.store.get(owned))
        last = last_event(request)
        if "starting_after" in request.query_params:
            query = Following.of_query(request.query_params)
            last = LastEvent(query.starting_after, "starting_after")
        replay = self.store.replay(owned)
        if replay is not None:
            return self.answers.follow(id, replay, last)
        answer = await self._reopen(request, owned)
        if answer is None or not answer.streams:
            self.store.get(owned)  # raises for an unknown response
            raise BadRequest("response.no_stream", param="stream")
        return await self.answers.stream(request, answer, RESPONSES, last)

    async def _reopen(self, request: Request, owned: Owned) -> Answer | Kept | None:
        if not owned.name.startswith(ID_PREFIX):
            return None
        return await self.answers.reopen(request, owned, partial(self._read, owned.owner))

    async def items(self, request: Request, id: str) -> Response:
        items = self.store.items(owned_by(request, id))
        return JSONResponse(Page.of_query(request.query_params).of(items))

    async def delete(self, request: Request, id: str) -> Response:
        owned = owned_by(request, id)
        in_progress = owned in self.store.open  # which is not stored, and keeps its record
        if in_progress or not await self.answers.drop(owned) or owned in self.store:
            self.store.delete(owned)
        return JSONResponse({"id": id, "object": "response", "deleted": True})

    async def cancel(self, request: Request, id: str) -> Response:
        """Cancel a response in progress; a finished one is returned unchanged."""
        owned = owned_by(request, id)
        if owned not in self.store:
            await self._reopen(request, owned)
        running = self.store.open.get(owned)
        if running is None:
            return JSONResponse(self.store.get(owned))
        running.stream.close()
        running.encoder.response["status"] = "cancelled"
        return JSONResponse(running.encoder.response)


def owned_by(request: Request, id: str) -> Owned:
    """Return the response `id` of the key that sent a request."""
    return Owned(owner_of(request.scope), id)


@dataclass(frozen=True, slots=True)
class _Lifetime:
    """One response from its first event until it is stored."""

    store: ResponseStore
    answers: Answers
    owner: str
    body: ResponseRequest
    conversation: Conversation

    def encoder(self, stream: GenerationStream) -> ResponseEncoder:
        encoder = self.body.encoder(stream, self.conversation)
        self.store.open[Owned(self.owner, stream.id)] = Open(stream, encoder)
        return encoder

    def ended(self, encoder: Encoder, /, *, final: bool) -> None:
        """Store the response if the request says so and it has a final status."""
        assert isinstance(encoder, ResponseEncoder)
        response = encoder.response
        owned = Owned(self.owner, response["id"])
        running = self.store.open.pop(owned, None)
        if running is None or not self.body.stored or not final:
            return
        if response["status"] != "in_progress":
            items = [item.as_output() for item in self.body.items]
            numbered = [{"id": f"{response['id']}_in_{i}"} | item for i, item in enumerate(items)]
            answer = self.answers.running.get(owned)
            replay = None
            if answer is not None and self.body.stream:
                replay = answer.unrecorded
            messages = self.conversation.messages
            self.store.keep(self.owner, response, numbered, messages, replay)
