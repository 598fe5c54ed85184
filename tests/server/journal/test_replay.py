"""Streams with ids as the official client reads them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from openai import OpenAI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from omlx.server.http import sse
from omlx.server.journal.answer import Replay
from omlx.server.request.dialect import OPENAI, Wire
from tests.server.running import serving

CHUNKS: list[dict[str, Any]] = [
    {"id": "a", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": []}
] * 2
EVENTS: list[dict[str, Any]] = [
    {"type": "response.output_text.delta", "delta": text, "item_id": "a", "sequence_number": number}
    for number, text in enumerate("xy")
]


async def silent_midway(request: Request) -> StreamingResponse:
    chat = request.url.path.endswith("chat/completions")
    replay = Replay(OPENAI if chat else Wire(sse.named))
    payloads = CHUNKS if chat else EVENTS

    async def frames() -> AsyncIterator[bytes]:
        replay.add(payloads[:1])
        stream = replay.frames(0, idle_s=0.0)
        yield await anext(stream)
        yield await anext(stream)  # silence
        replay.add(payloads[1:])
        replay.finish()
        replay.end()
        async for frame in stream:
            yield frame

    return StreamingResponse(frames(), media_type="text/event-stream")


@pytest.mark.parametrize("path", ["chat", "responses"])
def test_a_silent_stream_with_ids_is_kept_open(path: str) -> None:
    """Once it has an id, the client takes each blank line for an event."""
    app = Starlette(routes=[Route("/{path:path}", silent_midway, methods=["POST"])])
    with serving(app) as url, OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        if path == "chat":
            chunks = client.chat.completions.create(model="m", messages=[], stream=True)
            assert [chunk.id for chunk in chunks] == ["a", "a"]
        else:
            events: Any = client.responses.create(model="m", input="Any.", stream=True)
            assert [event.delta for event in events] == ["x", "y"]
