"""From a request's body to an HTTP response, whole or as server-sent events, in any dialect.

    Exchange ─► GenerationService.open ─► GenerationStream ─► Encoder ─► JSON body, or frames

Both kinds of response share everything but the encoding: the same events, the same errors, the same
cancellation when the client disconnects.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from omlx.errors import OmlxError
from omlx.server.http import sse
from omlx.server.http.caller import caller_of
from omlx.server.http.connection import note, while_connected
from omlx.server.journal.answers import Answers
from omlx.server.journal.journal import Journal
from omlx.server.request.dialect import ChoiceEvent, Encoder, Wire
from omlx.server.request.exchange import Exchange
from omlx.server.request.generation import GenerationService
from omlx.server.request.stream import GenerationStream


class Responder:
    """A stream that is silent for `keep_alive_s` gets a comment, so that proxies and clients
    keep it open."""

    def __init__(
        self, generations: GenerationService, keep_alive_s: float, journal: Journal | None = None
    ) -> None:
        self.answers = Answers(generations, keep_alive_s, journal)
        self._generations = generations
        self._keep_alive_s = keep_alive_s

    async def respond(self, request: Request, exchange: Exchange) -> Response:
        """Generate, and answer in the dialect.

        Raises OmlxError for what fails before the first byte.
        """
        if self.answers.takes(request, exchange):
            answer, source = await self.answers.open(request, exchange)
            return await self.answers.reply(request, exchange, answer, source)
        caller = caller_of(request.scope)
        opening = self._generations.open(exchange.generation, exchange.id_prefix, caller)
        stream = await while_connected(request.receive, opening)
        note(request.scope, stream)
        encoder = exchange.encoder(stream)

        def close() -> None:
            stream.close()
            exchange.on_end(encoder, final=True)

        try:
            if not exchange.stream:
                body = encoder.body(await while_connected(request.receive, collect(stream)))
                close()
                await self.answers.flushed()
                return JSONResponse(body)
            await while_connected(request.receive, stream.started(self._keep_alive_s))
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
            async for batch in stream.batches(self._keep_alive_s):
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
