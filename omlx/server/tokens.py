"""Text to token ids and back, as vLLM's and llama.cpp's servers offer it. No weights are loaded for it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from omlx.errors import BadRequest
from omlx.server import tooling
from omlx.server.connection import while_connected
from omlx.server.fields import Body, Listed, read
from omlx.server.generation import GenerationRequest, Generations
from omlx.server.openai.chat.request import ChatMessage


class TokenizeRequest(Body):
    """One of `prompt`, `content` (llama.cpp's name for it) and `messages`."""

    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    messages: Annotated[Listed[ChatMessage], Field(min_length=1)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_special_tokens: bool | None = None
    add_special: bool | None = None


class DetokenizeRequest(Body):
    model: str | None = None
    tokens: Listed[Annotated[int, Field(ge=0)]]


async def tokenize(request: Request) -> Response:
    asked = read(TokenizeRequest, await request.body())
    generations: Generations = request.app.state.generations
    if asked.messages is not None:
        messages = tooling.with_names(
            [message.rendered(at) for at, message in enumerate(asked.messages)]
        )
        rendered = GenerationRequest(
            messages, asked.model, template_variables=asked.chat_template_kwargs or {}
        )
        tokens = await while_connected(request.receive, generations.prompt_ids(rendered))
    else:
        text = asked.prompt if asked.prompt is not None else asked.content
        if text is None:
            raise BadRequest("request.missing", param="prompt", field="prompt")
        special = False not in (asked.add_special_tokens, asked.add_special)
        tokens = await while_connected(
            request.receive, generations.tokenize(asked.model, text, special=special)
        )
    return JSONResponse({"tokens": tokens, "count": len(tokens)})


async def detokenize(request: Request) -> Response:
    asked = read(DetokenizeRequest, await request.body())
    generations: Generations = request.app.state.generations
    text = await while_connected(request.receive, generations.detokenize(asked.model, asked.tokens))
    return JSONResponse({"prompt": text, "content": text})
