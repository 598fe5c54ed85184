"""What is generated, by path: a body is read, asked for, and answered in its dialect."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from fastapi import Request
from starlette.responses import Response

from omlx.server.answer import answer
from omlx.server.openai import chat_request


async def chat_completions(request: Request) -> Response:
    """An answer of the model to a conversation."""
    return await answer(request, chat_request.parse(await request.body()).asked())


POST: Final[Mapping[str, Callable[[Request], Awaitable[Response]]]] = {
    "/v1/chat/completions": chat_completions,
}
