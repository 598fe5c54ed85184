"""Texts to vectors, one after another on the engine thread, a chunk between two steps of whoever generates."""

from __future__ import annotations

import asyncio

from fastapi import Request
from starlette.responses import JSONResponse, Response

from omlx.errors import BadRequest
from omlx.models.package.pooling import Pooling, pooling
from omlx.models.pool.embedding import Embedding
from omlx.models.pool.pool import Pool
from omlx.server.connection import while_connected
from omlx.server.generation import Generations, check_ids
from omlx.server.openai.embeddings import request as embedding_request
from omlx.server.openai.embeddings.request import EmbeddingRequest
from omlx.server.stream import Engine


async def embeddings(request: Request) -> Response:
    """A vector for each text, of models whose packages say how."""
    asked = embedding_request.parse(await request.body())
    pool: Pool = request.app.state.pool
    entry = pool.resolve(asked.model)
    how = await asyncio.to_thread(pooling, entry.path, entry.id)
    return await while_connected(request.receive, _embedded(request, asked, entry.id, how))


async def _embedded(
    request: Request, asked: EmbeddingRequest, model: str, how: Pooling
) -> Response:
    engine: Engine = request.app.state.engine
    generations: Generations = request.app.state.generations
    pool: Pool = request.app.state.pool
    lease = await pool.lease(model)
    try:
        served = lease.served
        texts = []
        for given in asked.inputs:
            ids = (
                await generations.tokenize(model, given, special=True)
                if isinstance(given, str)
                else given
            )
            check_ids(ids, served.vocab_size, "input")
            if len(ids) > (limit := served.context_length):
                raise BadRequest(
                    "engine.prompt_too_long", param="input", tokens=len(ids), limit=limit
                )
            texts.append(ids)
        vectors = []
        for ids in texts:
            job = Embedding(ids, how.mode)
            while not await asyncio.wrap_future(engine.with_loop(served.id, job.advance)):
                pass
            assert job.vector is not None
            vectors.append(asked.cut(job.vector, normalize=how.normalize))
        return JSONResponse(asked.body(served.id, vectors, sum(map(len, texts))))
    finally:
        lease.release()
