"""From a request's body to an HTTP response, whole or as server-sent events.

    Exchange ─► ToolLoops.open ─► GenerationStream ─► Encoder ─► JSON body, or frames

Both kinds of response share events, errors and cancellation on disconnect; only the encoding
differs. Requests in progress are listed, and cancelled by id; named keys see only their own.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from itertools import groupby
from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from omlx.errors import NotFound, OmlxError, Stopped, optional_reason
from omlx.server.dialects.anthropic.request import MessageRequest
from omlx.server.dialects.openai.chat_request import ChatMessage, ChatRequest
from omlx.server.dialects.openai.completions_request import CompletionRequest
from omlx.server.http.errors import field_error
from omlx.server.http.guard import caller_of, is_named, key_of
from omlx.server.http.transport import (
    EventStream,
    Json,
    NamedModel,
    note,
    read_body,
    while_connected,
)
from omlx.server.journal.answers import Answers
from omlx.server.journal.journal import Journal
from omlx.server.request import tooling
from omlx.server.request.activity import Activity, Running
from omlx.server.request.content import ContentReader
from omlx.server.request.dialect import Encoder, Exchange, Wire
from omlx.server.request.fields import Body, Listed
from omlx.server.request.generation import SHOWN_ID, GenerationService
from omlx.server.request.generation_request import GenerationRequest
from omlx.server.request.stream import ChoiceEvent, GenerationStream
from omlx.server.request.usage import with_forecast
from omlx.server.tool_loop import ToolLoops


class Responder:
    """Answers exchanges, as bodies or streams. `answers` has those that outlive a connection.

    A stream gets a comment after `keep_alive_s` of silence, so that proxies and clients keep it
    open.
    """

    def __init__(
        self, loops: ToolLoops, keep_alive_s: float, journal: Journal | None = None
    ) -> None:
        self.answers = Answers(loops, keep_alive_s, journal)
        self.loops = loops
        self._keep_alive_s = keep_alive_s

    async def respond(self, request: Request, exchange: Exchange) -> Response:
        """Generate, and answer in the dialect. Raises OmlxError for failures before the first
        byte.
        """
        if exchange.generation.model is not None:
            note(request.scope, NamedModel(exchange.generation.model))
        if self.answers.takes(request, exchange):
            answer, source = await self.answers.open(request, exchange)
            return await self.answers.reply(request, exchange, answer, source)
        caller = caller_of(request.scope)
        opening = self.loops.open(exchange.generation, exchange.id_prefix, caller)
        stream = await while_connected(request.receive, opening)
        note(request.scope, stream)
        encoder = exchange.encoder(stream)

        def close() -> None:
            stream.close()
            if exchange.on_end is not None:
                exchange.on_end(encoder, final=True)

        try:
            if not exchange.stream:
                body = encoder.body(await while_connected(request.receive, collect(stream)))
                close()
                if exchange.on_end is not None:  # which may store the answer
                    await self.answers.flushed()
                return JSONResponse(body, headers=stream.headers)
            await while_connected(request.receive, stream.started(self._keep_alive_s))
        except BaseException:
            close()
            raise
        frames = self._frames(stream, encoder, exchange.wire)
        return EventStream(frames, close, exchange.wire.media_type, stream.headers)

    async def _frames(
        self, stream: GenerationStream, encoder: Encoder, wire: Wire
    ) -> AsyncGenerator[bytes, None]:
        """Yield bytes per batch of events; an error becomes the last event."""
        yield b"".join(map(wire.frame, with_forecast(encoder.start(), stream.progress)))
        try:
            async for batch in stream.batches(self._keep_alive_s):
                frames = b"".join(wire.silence(stream.progress))
                if batch:
                    frames = b"".join(map(wire.frame, encoder.feed(batch)))
                if frames:
                    yield frames
        except OmlxError as error:
            yield b"".join(map(wire.frame, encoder.failed(error)))
            return
        if wire.done:
            yield wire.done


async def collect(stream: GenerationStream) -> list[ChoiceEvent]:
    """Return all events after the last choice has ended. Raises the error that ended the stream."""
    events: list[ChoiceEvent] = []
    async for batch in stream.batches():
        events += batch
    return events


class TokenizeRequest(Body):
    """A body with `messages`, `prompt` or `content` (llama.cpp's name for the prompt)."""

    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    messages: Annotated[Listed[ChatMessage], Field(min_length=1)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_special_tokens: bool | None = None
    add_special: bool | None = None

    @property
    def text(self) -> str:
        """Text to tokenize. Raises BadRequest without any."""
        text = self.prompt if self.prompt is not None else self.content
        if text is None:
            raise field_error("request.missing", "prompt")
        return text

    def conversation(self, messages: Sequence[ChatMessage]) -> GenerationRequest:
        rendered = [message.rendered(at, ContentReader()) for at, message in enumerate(messages)]
        return GenerationRequest(
            messages=tooling.with_names(rendered),
            model=self.model,
            template_variables=self.chat_template_kwargs or {},
        )


class DetokenizeRequest(Body):
    model: str | None = None
    tokens: Listed[Annotated[int, Field(ge=0)]]


class GenerationEndpoints:
    """Answers to conversations and prompts, and the token counts of both."""

    def __init__(self, responder: Responder, generations: GenerationService) -> None:
        self._responder = responder
        self._generations = generations

    async def chat_completions(self, request: Request) -> Response:
        """Answer a conversation."""
        return await self._answer(request, ChatRequest)

    async def completions(self, request: Request) -> Response:
        """Continue a text."""
        return await self._answer(request, CompletionRequest)

    async def messages(self, request: Request) -> Response:
        """Answer a conversation, in Anthropic's dialect."""
        return await self._answer(request, MessageRequest)

    async def count_tokens(self, request: Request) -> Response:
        """Count the prompt tokens of a message request. Nothing is generated."""
        conversation = await read_body(
            request, lambda body: MessageRequest.parse(body).generation_request()
        )
        work = self._responder.loops.prompt_ids(conversation, caller_of(request.scope))
        tokens = await while_connected(request.receive, work)
        return JSONResponse({"input_tokens": len(tokens)})

    async def tokenize(self, request: Request) -> Response:
        body = await read_body(request, TokenizeRequest.parse)
        if body.messages is not None:
            work = self._generations.prompt_ids(body.conversation(body.messages))
        else:
            special = False not in (body.add_special_tokens, body.add_special)
            work = self._generations.tokenize(
                body.model, body.text, special=special, param="prompt"
            )
        tokens = await while_connected(request.receive, work)
        return JSONResponse({"tokens": tokens, "count": len(tokens)})

    async def detokenize(self, request: Request) -> Response:
        body = await read_body(request, DetokenizeRequest.parse)
        work = self._generations.detokenize(body.model, body.tokens)
        text = await while_connected(request.receive, work)
        return JSONResponse({"prompt": text, "content": text})

    async def _answer(
        self, request: Request, kind: type[ChatRequest | CompletionRequest | MessageRequest]
    ) -> Response:
        exchange = await read_body(request, lambda body: kind.parse(body).exchange())
        return await self._responder.respond(request, exchange)


class RequestEndpoints:
    """GET /v1/requests, and POST /v1/requests/ID/cancel."""

    def __init__(self, activity: Activity, generations: GenerationService) -> None:
        self._activity = activity
        self._generations = generations

    async def list_requests(self, request: Request) -> Response:
        """List responses in progress, in order of submission."""
        groups = groupby(self._own(request.scope), key=lambda running: running.group)
        data = [self._record(list(choices)) for _, choices in groups]
        return JSONResponse({"object": "list", "data": data})

    async def cancel(self, request: Request) -> Response:
        """Cancel a response; the client gets an error. Raises NotFound."""
        id = request.path_params["id"]
        caller = self._generations.caller(id)
        key = key_of(request.scope) if is_named(request.scope) else None
        if caller is None or key not in (None, caller.key):
            raise NotFound("request.gone", id=id[:SHOWN_ID])
        self._generations.stop(id, Stopped("request.cancelled"))
        return JSONResponse({"id": id, "object": "request", "cancelled": True})

    def _own(self, scope: Scope) -> Sequence[Running]:
        running = self._activity.running
        if not is_named(scope):
            return running
        return [each for each in running if each.arrival.caller.key == key_of(scope)]

    def _record(self, choices: Sequence[Running]) -> Json:
        first = choices[0]
        progress = self._activity.progress(first.group)
        return {
            "id": first.group,
            "object": "request",
            "model": first.model,
            "client": first.arrival.caller.client,
            "priority": first.priority,
            "guess": optional_reason(first.arrival.guess),
            "seconds": round(self._activity.clock() - first.arrival.at, 3),
            "prompt_tokens": first.prompt,
            "completion_tokens": sum(choice.tokens for choice in choices),
            "prompt_progress": None if progress is None else progress.to_json(),
        }
