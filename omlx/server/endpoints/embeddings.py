"""Embeddings: texts to vectors, in chunks between the steps of running requests."""

from __future__ import annotations

import asyncio
import struct
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from time import monotonic
from typing import Annotated, Final, Literal, TypeAlias

from fastapi import Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from omlx.errors import BadRequest
from omlx.models.catalog.facts import pooling
from omlx.models.pool.pool import Pool
from omlx.models.pool.served import ServedModel
from omlx.models.texts import Embedding, Encoding
from omlx.server.dialects.ollama.fields import Configured
from omlx.server.dialects.openai.completions_request import Given, separate
from omlx.server.http.body import Json, read_body
from omlx.server.http.connection import while_connected
from omlx.server.http.errors import field_error
from omlx.server.request.engine_requests import check_ids
from omlx.server.request.fields import Body, Listed, Text
from omlx.server.request.generation import GenerationService
from omlx.server.request.usage import warnings

MAX_INPUTS: Final = 2048
Input: TypeAlias = str | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Embedded:
    """Vectors of texts with `tokens` tokens in total, by the model with id `model`."""

    model: str
    vectors: Sequence[Sequence[float]]
    tokens: int


def _cut(vector: Sequence[float], dimensions: int | None, *, normalize: bool) -> Sequence[float]:
    """Keep `dimensions` components, then scale to length 1 if `normalize`.

    Raises BadRequest for more dimensions than the vector has.
    """
    if dimensions is not None:
        if dimensions > len(vector):
            raise BadRequest("embedding.dimensions", param="dimensions", most=len(vector))
        vector = vector[:dimensions]
    length = sqrt(sum(value * value for value in vector)) if normalize else 0.0
    return [value / length for value in vector] if length else vector


class EmbeddingRequest(Body):
    """The body of POST /v1/embeddings."""

    model: Text
    input: Given
    dimensions: Annotated[int, Field(ge=1)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    user: str | None = None

    @property
    def inputs(self) -> tuple[Input, ...]:
        return separate(self.input)

    def body(self, embedded: Embedded) -> Json:
        data = [
            {"object": "embedding", "index": i, "embedding": self._encoded(vector)}
            for i, vector in enumerate(embedded.vectors)
        ]
        usage = {"prompt_tokens": embedded.tokens, "total_tokens": embedded.tokens}
        return {"object": "list", "data": data, "model": embedded.model, "usage": usage}

    def _encoded(self, vector: Sequence[float]) -> list[float] | str:
        if self.encoding_format == "base64":
            return b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
        return list(vector)


_NS: Final = 1_000_000_000


class EmbedRequest(Configured):
    """The body of POST /api/embed. Texts beyond the context are refused, even with `truncate`."""

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
    """OpenAI's and Ollama's. Without a text, Ollama's load the model."""

    def __init__(self, pool: Pool, generations: GenerationService) -> None:
        self._pool = pool
        self._generations = generations

    async def embeddings(self, request: Request) -> Response:
        """Return a vector per text, by models whose packages declare how to pool."""
        body = await read_body(request, EmbeddingRequest.parse)
        work = self._embed(body.model, body.inputs, body.dimensions, "input")
        return JSONResponse(body.body(await while_connected(request.receive, work)))

    async def embed(self, request: Request) -> Response:
        """Return a vector per text, in Ollama's dialect."""
        started_at = monotonic()
        body = await read_body(request, EmbedRequest.parse)
        embedded = await self._embedded(request, body, body.inputs, body.dimensions, "input")
        answer: Json = {
            "model": embedded.model,
            "embeddings": embedded.vectors,
            "total_duration": round((monotonic() - started_at) * _NS),
            "load_duration": 0,
            "prompt_eval_count": embedded.tokens,
        }
        return JSONResponse(answer | warnings(body.option_warnings()))

    async def embed_one(self, request: Request) -> Response:
        """Return the vector of a single text, in Ollama's older dialect."""
        body = await read_body(request, EmbeddingsRequest.parse)
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
        work = self._embed(model, texts, dimensions, param)
        embedded = await while_connected(request.receive, work)
        if keep_s is not None:
            self._pool.residents.keep(model, keep_s)
        return embedded

    async def _embed(
        self, model: str | None, inputs: Sequence[Input], dimensions: int | None, param: str
    ) -> Embedded:
        """Return a vector per text, by a model whose package declares how to pool.

        `dimensions`: components per vector, None for all. Raises OmlxError about the field `param`
        for too many or too long texts.
        """
        if len(inputs) > MAX_INPUTS:
            raise field_error("request.too_many", param, count=len(inputs), limit=MAX_INPUTS)
        entry = self._pool.resolve(model)
        declared = await asyncio.to_thread(pooling, entry)
        lease = await self._pool.lease(entry.id)
        try:
            fields = [f"{param}[{at}]" for at in range(len(inputs))]
            if len(inputs) == 1:
                fields = [param]
            named = zip(inputs, fields, strict=True)
            texts = [await self._ids(text, lease.served, field) for text, field in named]
            kind = Embedding if lease.served.generates else Encoding
            vectors = []
            for ids in texts:
                embedding = kind(ids, declared.mode)
                await self._pool.read_text(lease.served, embedding)
                vectors.append(_cut(embedding.vector, dimensions, normalize=declared.normalize))
            return Embedded(lease.served.id, vectors, tokens=sum(map(len, texts)))
        finally:
            lease.release()

    async def _ids(self, text: Input, served: ServedModel, param: str) -> tuple[int, ...]:
        """Return token ids. Raises BadRequest for unknown ids and for a text longer than the
        context.
        """
        if isinstance(text, str):
            encoded = await self._generations.tokenize(
                served.id, text, special=True, limit=served.context_length, param=param
            )
            ids = tuple(encoded)
        else:
            ids = text
        check_ids(ids, served.vocab_size, param)
        if len(ids) > served.context_length:
            raise field_error(
                "embedding.too_long", param, tokens=len(ids), limit=served.context_length
            )
        return ids
