"""From a running stream to an HTTP response, whole or as server-sent events, in any dialect.

Both ways share everything but the encoding: the same events, the same end, the same care for clients that leave.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from omlx.errors import OmlxError
from omlx.server import sse
from omlx.server.access import note
from omlx.server.connection import while_connected
from omlx.server.dialect import ChoiceEvent, Encoder, Wire
from omlx.server.generation import GenerationRequest, Generations
from omlx.server.stream import GenerationStream


def _nobody(encoder: Encoder) -> None:
    """Hears of every end and keeps nothing."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What one request wants: `neutral` from the engine, told by the `encoder`, with ids that begin with `prefix`.

    `ended` hears of the encoder once nothing more will come, whoever ended it.
    """

    neutral: GenerationRequest
    stream: bool
    prefix: str
    encoder: Callable[[GenerationStream], Encoder]
    wire: Wire
    ended: Callable[[Encoder], None] = _nobody


async def answer(request: Request, asked: Asked) -> Response:
    """Generate, and answer as the dialect does. Raises OmlxError for what fails before the first byte."""
    generations: Generations = request.app.state.generations
    keep_alive_s: float = request.app.state.keep_alive_s
    stream = await while_connected(request.receive, generations.open(asked.neutral, asked.prefix))
    note(request.scope, stream)
    encoder = asked.encoder(stream)

    def close() -> None:
        stream.close()
        asked.ended(encoder)

    try:
        if not asked.stream:
            body = encoder.body(await while_connected(request.receive, collected(stream)))
            close()
            return JSONResponse(body)
        await while_connected(request.receive, stream.started(keep_alive_s))
    except BaseException:
        close()
        raise
    return sse.EventStream(_frames(stream, encoder, asked.wire, keep_alive_s), close)


async def collected(stream: GenerationStream) -> list[ChoiceEvent]:
    """All events, at the end. Raises what failed."""
    return [event async for batch in stream.batches() for event in batch]


async def _frames(
    stream: GenerationStream, encoder: Encoder, wire: Wire, keep_alive_s: float
) -> AsyncGenerator[bytes, None]:
    """One write a batch. An error after the first byte is the stream's last event."""
    yield b"".join(map(wire.frame, encoder.start()))
    try:
        async for batch in stream.batches(keep_alive_s):
            if frames := b"".join(map(wire.frame, encoder.feed(batch))) if batch else wire.idle:
                yield frames
    except OmlxError as error:
        yield b"".join(map(wire.frame, encoder.failed(error)))
        return
    if wire.done:
        yield wire.done
