"""Text to token ids and back, in the API of vLLM's and llama.cpp's servers. Loads no weights."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

from fastapi import Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from omlx.errors import BadRequest
from omlx.server.dialects.openai.chat_request import ChatMessage
from omlx.server.http.body import read_body
from omlx.server.http.connection import while_connected
from omlx.server.request import tools as tooling
from omlx.server.request.content import Reading
from omlx.server.request.fields import Body, Listed, read
from omlx.server.request.generation import GenerationService
from omlx.server.request.generation_request import GenerationRequest


class TokenizeRequest(Body):
    """One of `prompt`, `content` (llama.cpp's name for it) and `messages`."""

    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    messages: Annotated[Listed[ChatMessage], Field(min_length=1)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_special_tokens: bool | None = None
    add_special: bool | None = None

    @property
    def text(self) -> str:
        """Raises BadRequest if there is none."""
        text = self.prompt if self.prompt is not None else self.content
        if text is None:
            raise BadRequest("request.missing", param="prompt", field="prompt")
        return text

    def conversation(self, messages: Sequence[ChatMessage]) -> GenerationRequest:
        rendered = [message.rendered(at, Reading()) for at, message in enumerate(messages)]
        return GenerationRequest(
            messages=tooling.with_names(rendered),
            model=self.model,
            template_variables=self.chat_template_kwargs or {},
        )


class DetokenizeRequest(Body):
    model: str | None = None
    tokens: Listed[Annotated[int, Field(ge=0)]]


class TokenEndpoints:
    def __init__(self, generations: GenerationService) -> None:
        self._generations = generations

    async def tokenize(self, request: Request) -> Response:
        body = await read_body(request, partial(read, TokenizeRequest))
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
        body = await read_body(request, partial(read, DetokenizeRequest))
        work = self._generations.detokenize(body.model, body.tokens)
        text = await while_connected(request.receive, work)
        return JSONResponse({"prompt": text, "content": text})
