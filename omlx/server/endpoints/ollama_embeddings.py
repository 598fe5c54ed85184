"""POST /api/embed and /api/embeddings, which embeds one text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from time import monotonic
from typing import Annotated, Final

from fastapi import Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from omlx.models.pool.pool import Pool
from omlx.server.dialects.ollama.fields import Configured
from omlx.server.endpoints.embedding import Embedded, EmbeddingService
from omlx.server.http.body import read_body
from omlx.server.http.connection import while_connected
from omlx.server.request.dialect import Json
from omlx.server.request.fields import Listed, Text, read
from omlx.server.request.usage import warnings

_NS: Final = 1_000_000_000


class EmbedRequest(Configured):
    """The body of POST /api/embed. A text that is too long is refused, with `truncate` too."""

    input: str | Listed[Text] | None = None
    truncate: bool | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None

    @property
    def inputs(self) -> Sequence[str]:
        texts = [self.input] if isinstance(self.input, str) else self.input or []
        return [text for text in texts if text]


class EmbeddingsRequest(Configured):
    """The body of POST /api/embeddings."""

    prompt: str | None = None


class EmbeddingEndpoints:
    """Without a text, the model is loaded."""

    def __init__(self, service: EmbeddingService, pool: Pool) -> None:
        self._service = service
        self._pool = pool

    async def embed(self, request: Request) -> Response:
        """A vector for each text."""
        started_at = monotonic()
        body = await read_body(request, partial(read, EmbedRequest))
        embedded = await self._embedded(request, body, body.inputs, body.dimensions, "input")
        answer: Json = {
            "model": embedded.model,
            "embeddings": embedded.vectors,
            "total_duration": round((monotonic() - started_at) * _NS),
            "load_duration": 0,
            "prompt_eval_count": embedded.tokens,
        }
        return JSONResponse(answer | warnings(body.option_warnings()))

    async def embeddings(self, request: Request) -> Response:
        """The vector of one text."""
        body = await read_body(request, partial(read, EmbeddingsRequest))
        texts = [body.prompt] if body.prompt else []
        embedded = await self._embedded(request, body, texts, None, "prompt")
        return JSONResponse({"embedding": next(iter(embedded.vectors), [])})

    async def _embedded(
        self,
        request: Request,
        body: Configured,
        texts: Sequence[str],
        dimensions: int | None,
        param: str,
    ) -> Embedded:
        keep_s, model = body.keep_s, self._pool.resolve(body.id).id
        work = self._service.embed(model, texts, dimensions, param)
        embedded = await while_connected(request.receive, work)
        if keep_s is not None:
            self._pool.residents.keep(model, keep_s)
        return embedded
