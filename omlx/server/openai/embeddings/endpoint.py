"""POST /v1/embeddings: texts to vectors, one after another, in chunks between the steps of
running requests."""

from __future__ import annotations

import asyncio

from fastapi import Request
from starlette.responses import JSONResponse, Response

from omlx.errors import BadRequest
from omlx.models.package.pooling import Pooling, pooling
from omlx.models.pool.pool import Pool
from omlx.models.pool.resident import ServedModel
from omlx.server.body import read_body
from omlx.server.connection import while_connected
from omlx.server.dialect import Json
from omlx.server.engine_requests import check_ids
from omlx.server.generation import GenerationService
from omlx.server.openai.embeddings import request as embedding_request
from omlx.server.openai.embeddings.request import EmbeddingRequest


class EmbeddingEndpoint:
    def __init__(self, pool: Pool, generations: GenerationService) -> None:
        self._pool = pool
        self._generations = generations

    async def embeddings(self, request: Request) -> Response:
        """A vector for each text, by models whose packages declare how to pool."""
        body = await read_body(request, embedding_request.parse)
        entry = self._pool.resolve(body.model)
        declared = await asyncio.to_thread(pooling, entry.path, entry.id)
        work = self._embed(body, entry.id, declared)
        return JSONResponse(await while_connected(request.receive, work))

    async def _embed(self, body: EmbeddingRequest, model: str, declared: Pooling) -> Json:
        lease = await self._pool.lease(model)
        try:
            if self._pool.status(model).stages:  # followers return hidden states to no request
                raise BadRequest("embedding.staged", param="model")
            texts = [await self._ids(text, lease.served) for text in body.inputs]
            vectors = []
            for ids in texts:
                vector = await self._pool.embed(lease.served, ids, declared)
                vectors.append(body.cut(vector, normalize=declared.normalize))
            return body.body(lease.served.id, vectors, tokens=sum(map(len, texts)))
        finally:
            lease.release()

    async def _ids(self, text: str | tuple[int, ...], served: ServedModel) -> tuple[int, ...]:
        """Raises BadRequest for an id outside the vocabulary and for a text longer than the
        context."""
        if isinstance(text, str):
            encoded = await self._generations.tokenize(
                served.id, text, special=True, limit=served.context_length, param="input"
            )
            ids = tuple(encoded)
        else:
            ids = text
        check_ids(ids, served.vocab_size, "input")
        if len(ids) > served.context_length:
            raise BadRequest(
                "engine.prompt_too_long",
                param="input",
                tokens=len(ids),
                limit=served.context_length,
            )
        return ids
