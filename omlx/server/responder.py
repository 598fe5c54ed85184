"""From a request's body to an HTTP response, whole or as server-sent events, in any dialect.

    Exchange ─► GenerationService.open ─► GenerationStream ─► Encoder ─► JSON body, or frames

Both kinds of response share everything but the encoding: the same events, the same errors, the same
cancellation when the client disconnects.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from omlx.errors import OmlxError
from omlx.server import sse
from omlx.server.caller import caller_of
from omlx.server.connection import while_connected
from omlx.server.dialect import ChoiceEvent, Encoder, Wire
from omlx.server.generation import GenerationService
from omlx.server.generation_request import GenerationRequest
from omlx.server.notes import note
from omlx.server.stream import GenerationStream


def _ignore(encoder: Encoder) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request of a dialect: what to generate, and how to answer.

    `encoder` makes the encoder of a started stream. `on_end` is called once with it when nothing
    more will come, for whatever reason.
    """

    generation: GenerationRequest
    stream: bool
    id_prefix: str
    encoder: Callable[[GenerationStream], Encoder]
    wire: Wire
    on_end: Callable[[Encoder], None] = _ignore


class Responder:
    """A stream that is silent for `keep_alive_s` gets a comment, so that proxies and clients
    keep it open."""

    def __init__(self, generations: GenerationService, keep_alive_s: float) -> None:
        self._generations = generations
        self.keep_alive_s = keep_alive_s

    async def open(self, request: Request, exchange: Exchange) -> GenerationStream:
        """Start generating.

        Raises OmlxError; ClientGone if the client disconnects before the stream is open.
        """
        caller = caller_of(request.scope)
        opening = self._generations.open(exchange.generation, exchange.id_prefix, caller)
        stream = await while_connected(request.receive, opening)
        note(request.scope, stream)
        return stream

    async def respond(self, request: Request, exchange: Exchange) -> Response:
        """Generate, and answer in the dialect.

        Raises OmlxError for what fails before the first byte.
        """
        stream = await self.open(request, exchange)
        encoder = exchange.encoder(stream)

        def close() -> None:
            stream.close()
            exchange.on_end(encoder)

        try:
            if not exchange.stream:
                body = encoder.body(await while_connected(request.receive, collect(stream)))
                close()
                return JSONResponse(body)
            await while_connected(request.receive, stream.started(self.keep_alive_s))
        except BaseException:
            close()
            raise
        frames = self._frames(stream, encoder, exchange.wire)
        return sse.EventStream(frames, close, exchange.wire.media_type)

    async def _frames(
        self, stream: GenerationStream, encoder: Encoder, wire: Wire
    ) -> AsyncGenerator[bytes, None]:
        """Yield one chunk of bytes per batch; an error after the first becomes the last event."""
        yield b"".join(map(wire.frame, encoder.start()))
        try:
            async for batch in stream.batches(self.keep_alive_s):
                frames = wire.idle
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
    """Return all events, once the last choice has ended. Raises the error that ended the stream."""
    events: list[ChoiceEvent] = []
    async for batch in stream.batches():
        events += batch
    return events
