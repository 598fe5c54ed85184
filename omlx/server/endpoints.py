"""What is generated, by path: a body is read, asked for, and answered in its dialect."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from fastapi import Request
from starlette.responses import JSONResponse, Response

from omlx.server import tokens
from omlx.server.answer import answer
from omlx.server.anthropic import message_request
from omlx.server.connection import while_connected
from omlx.server.embeddings import embeddings
from omlx.server.generation import Generations
from omlx.server.openai.chat import request as chat_request
from omlx.server.openai.completions import request as completion_request


async def chat_completions(request: Request) -> Response:
    """An answer of the model to a conversation."""
    return await answer(request, chat_request.parse(await request.body()).asked())


async def messages(request: Request) -> Response:
    """The same in Anthropic's dialect."""
    return await answer(request, message_request.parse(await request.body()).asked())


async def count_tokens(request: Request) -> Response:
    """How long the prompt of a message would be. Nothing is generated."""
    generations: Generations = request.app.state.generations
    asked = message_request.parse(await request.body()).neutral()
    prompt = await while_connected(request.receive, generations.prompt_ids(asked))
    return JSONResponse({"input_tokens": len(prompt)})


async def completions(request: Request) -> Response:
    """What follows a text."""
    return await answer(request, completion_request.parse(await request.body()).asked())


POST: Final[Mapping[str, Callable[[Request], Awaitable[Response]]]] = {
    "/v1/chat/completions": chat_completions,
    "/v1/completions": completions,
    "/v1/embeddings": embeddings,
    "/v1/messages": messages,
    "/v1/messages/count_tokens": count_tokens,
    "/tokenize": tokens.tokenize,
    "/detokenize": tokens.detokenize,
}
