"""What is kept of a model's prefixes, looked at and cleared over HTTP."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from fastapi import Request
from starlette.responses import JSONResponse, Response

from omlx.models.pool import Pool
from omlx.server.generation import Generations
from omlx.server.openai import chat_request
from omlx.server.stream import Engine


async def clear(request: Request, name: str) -> Response:
    """Forget every prefix of a model. One that is not loaded has none."""
    pool: Pool = request.app.state.pool
    engine: Engine = request.app.state.engine
    await asyncio.wrap_future(engine.clear_prefixes(pool.model(name).id))
    return Response(status_code=204)


async def probe(request: Request, name: str) -> Response:
    """How much of the prompt of a chat request is there already; nothing is computed. Null for a model not loaded."""
    pool: Pool = request.app.state.pool
    engine: Engine = request.app.state.engine
    generations: Generations = request.app.state.generations
    model = pool.model(name).id
    asked = chat_request.parse(await request.body()).neutral()
    tokens = await generations.prompt_ids(replace(asked, model=model))
    cached = await asyncio.wrap_future(engine.probe_prefix(model, tokens))
    told = {"prompt_tokens": len(tokens), "cached_tokens": cached}
    return JSONResponse({"object": "prefix.probe", "model": model} | told)
