"""What is kept of a model's prefixes, looked at and cleared over HTTP.

`forget` and `look_up` do it for whoever serves pages too; `state` is that of the application.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from fastapi import Request
from starlette.datastructures import State
from starlette.responses import JSONResponse, Response

from omlx.models.pool.pool import Pool
from omlx.server.dialect import Json
from omlx.server.generation import GenerationRequest, Generations
from omlx.server.openai.chat import request as chat_request
from omlx.server.stream import Engine


async def clear(request: Request, name: str) -> Response:
    """Forget every prefix of a model. One that is not loaded has none."""
    await forget(request.app.state, name)
    return Response(status_code=204)


async def probe(request: Request, name: str) -> Response:
    """How much of the prompt of a chat request is there already; nothing is computed. Null for a model not loaded."""
    pool: Pool = request.app.state.pool
    model = pool.resolve(name).id
    asked = chat_request.parse(await request.body()).neutral()
    return JSONResponse(await look_up(request.app.state, model, asked))


async def forget(state: State, name: str) -> None:
    """Returns after the current step. Raises NotFound, EngineDead."""
    pool: Pool = state.pool
    engine: Engine = state.engine
    await asyncio.wrap_future(engine.clear_prefixes(pool.resolve(name).id))


async def look_up(state: State, name: str, asked: GenerationRequest) -> Json:
    """Tokens of the prompt of `asked`, and how many of them a model has kept. Modifies nothing, loads nothing.

    Raises NotFound, EngineDead, and BadRequest for what is no prompt for the model.
    """
    pool: Pool = state.pool
    engine: Engine = state.engine
    generations: Generations = state.generations
    model = pool.resolve(name).id
    tokens = await generations.prompt_ids(replace(asked, model=model))
    cached = await asyncio.wrap_future(engine.probe_prefix(model, tokens))
    return {
        "object": "prefix.probe",
        "model": model,
        "prompt_tokens": len(tokens),
        "cached_tokens": cached,
    }
