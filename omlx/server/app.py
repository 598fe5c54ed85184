"""The application: guard, routes, and where errors become answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from omlx import __version__
from omlx.engine.types import ModelSnapshot
from omlx.errors import EngineDead, Forbidden, OmlxError
from omlx.models.catalog.entry import ModelEntry
from omlx.models.pool.pool import Pool
from omlx.server import endpoints, errors, prefixes, status
from omlx.server.access import CLIENT_GONE, AccessLog, note
from omlx.server.anthropic import models
from omlx.server.connection import ClientGone, while_connected
from omlx.server.generation import Generations
from omlx.server.guard import ApiKey, Guard
from omlx.server.openai.responses.endpoints import Responses
from omlx.server.openapi import Application
from omlx.server.request_stats import Record
from omlx.server.stream import Engine
from omlx.settings.schema import Settings
from omlx.telemetry.metrics import Gauges, Metrics

KEEP_ALIVE_S = 5.0
SAVE_COSTS_S = 300.0
SWEEP_S = 1.0
SNAPSHOT_S = 2.0


def create_app(
    engine: Engine, pool: Pool, settings: Settings, *, keep_alive_s: float = KEEP_ALIVE_S
) -> FastAPI:
    """The server over one engine thread and its models. The caller starts and stops the engine.

    A stream that is silent for `keep_alive_s` gets a comment, so that proxies and clients do not give up on it.
    """

    record = Record(lambda: _gauges(engine, pool))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.generations = Generations(engine, pool, record)
        chores = [pool.save_costs_every(SAVE_COSTS_S), pool.sweep_every(SWEEP_S)]
        tasks = [asyncio.create_task(chore) for chore in chores]
        yield
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await pool.save_costs()
        app.state.generations.shut_down()

    key = ApiKey(settings.api_key)
    layers = _middleware(settings, key, record.metrics)
    app = Application(
        title="omlx",
        version=__version__,
        lifespan=lifespan,
        middleware=layers,
        docs_url=None,
        redoc_url=None,
    )
    app.state.engine, app.state.pool, app.state.keep_alive_s = engine, pool, keep_alive_s
    app.state.record, app.state.api_key = record, key
    responses = Responses()
    looked_at: dict[str, Callable[..., Awaitable[Response]]] = {
        "/health": health,
        "/metrics": metrics,
        "/v1/models": list_models,
        "/v1/models/{name:path}": show_model,
        "/v1/responses/{id}": responses.show,
        "/v1/responses/{id}/input_items": responses.items,
    }
    for path, endpoint in looked_at.items():
        app.add_api_route(path, endpoint, methods=["GET"])
        app.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False)
    for path, endpoint in endpoints.POST.items():
        app.add_api_route(path, endpoint, methods=["POST"])
    app.add_api_route("/v1/models/{name:path}/load", load_model, methods=["POST"])
    app.add_api_route("/v1/models/{name:path}/unload", unload_model, methods=["POST"])
    app.add_api_route("/v1/responses", responses.create, methods=["POST"])
    app.add_api_route("/v1/responses/{id}", responses.delete, methods=["DELETE"])
    app.add_api_route("/v1/responses/{id}/cancel", responses.cancel, methods=["POST"])
    app.add_api_route("/v1/models/{name:path}/prefixes", prefixes.clear, methods=["DELETE"])
    app.add_api_route("/v1/models/{name:path}/prefixes/probe", prefixes.probe, methods=["POST"])
    app.add_exception_handler(OmlxError, _refused)
    app.add_exception_handler(HTTPException, misrouted)
    app.add_exception_handler(ClientGone, _gone)
    app.add_exception_handler(ClientDisconnect, _gone)
    return app


async def health(request: Request) -> Response:
    """200 while the engine thread lives. Says nothing about models."""
    engine: Engine = request.app.state.engine
    if engine.failure is not None:
        return JSONResponse({"status": "error", **errors.openai(engine.failure)}, 503)
    return JSONResponse({"status": "ok"})


async def list_models(request: Request) -> Response:
    """In either dialect."""
    pool: Pool = request.app.state.pool
    records = [_model(entry) for entry in pool.models]
    if errors.speaks_anthropic(request.scope):
        return JSONResponse(models.listed(records))
    return JSONResponse({"object": "list", "data": records})


async def metrics(request: Request) -> Response:
    """What Prometheus reads."""
    record: Record = request.app.state.record
    content, content_type = record.metrics.scrape(request.headers.get("accept", ""))
    return Response(content, headers={"Content-Type": content_type})


async def show_model(request: Request, name: str) -> Response:
    """One model, and how it is drafted for and batched; its id may contain slashes, raw or percent-encoded."""
    state = request.app.state
    pool: Pool = state.pool
    entry = pool.resolve(name)
    configured = await asyncio.to_thread(pool.speculation, entry.id)
    served = next((each for each in pool.loaded if each.id == entry.id), None)
    snapshot = await _snapshot(state.engine, served.id) if served is not None else None
    told = status.speculation(configured, served, snapshot, state.record.recent(entry.id))
    batching = status.batching(snapshot.unbatchable) if snapshot is not None else None
    memory = status.memory(pool.status(entry.id))
    record = (
        models.model(_model(entry)) if errors.speaks_anthropic(request.scope) else _model(entry)
    )
    kept = status.prefixes(snapshot.prefix) if snapshot is not None else None
    return JSONResponse(
        record | memory | {"speculation": told, "batching": batching, "prefixes": kept}
    )


async def load_model(request: Request, name: str) -> Response:
    """Answers when the model is in memory; what has begun goes on when the client has gone."""
    return await _moved(request, name, request.app.state.pool.load)


async def unload_model(request: Request, name: str) -> Response:
    """Answers when the model is out of memory, which is when the requests that it has have ended."""
    return await _moved(request, name, request.app.state.pool.unload)


async def _moved(
    request: Request, name: str, move: Callable[[str], Coroutine[Any, Any, None]]
) -> Response:
    if "origin" in request.headers:  # a page: those have the dashboard, and to log in there
        raise Forbidden("guard.page")
    await request.body()
    await while_connected(request.receive, move(name))
    return await show_model(request, name)


async def _snapshot(engine: Engine, model: str) -> ModelSnapshot | None:
    """None while the engine is busy with something long, such as loading, or dead: nobody waits for a status."""
    with suppress(TimeoutError, EngineDead):
        return await asyncio.wait_for(asyncio.wrap_future(engine.snapshot(model)), SNAPSHOT_S)
    return None


def _gauges(engine: Engine, pool: Pool) -> Gauges:
    rows, kept = {}, {}
    for served in pool.loaded:
        rows[served.id] = asdict(engine.load_of(served.id))
        if (report := engine.prefix_of(served.id)) is not None:
            kept[served.id] = report
    memory = {"used": pool.used_bytes, "limit": pool.limit_bytes}
    return Gauges(engine.failure is None, rows, kept, memory)


def _middleware(settings: Settings, key: ApiKey, metrics: Metrics) -> list[Middleware]:
    """Outermost first: CORS answers a browser's preflight, which carries no key."""
    hosts = (settings.host, *settings.allow_host)
    origins = [
        origin.lower().rstrip("/") for origin in settings.allow_origin
    ]  # as browsers write them
    layers = [Middleware(AccessLog, metrics=metrics)]
    if origins:
        layers.append(
            Middleware(
                CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"]
            )
        )
    return [*layers, Middleware(Guard, hosts=hosts, origins=origins, key=key)]


def _model(entry: ModelEntry) -> dict[str, object]:
    created = int(entry.path.stat().st_mtime) if entry.path.exists() else 0
    return {
        "id": entry.id,
        "object": "model",
        "created": created,
        "owned_by": entry.id.partition("/")[0],
    }


async def misrouted(request: Request, error: Exception) -> Response:
    """An address that is none, or a method that it does not have."""
    assert isinstance(error, HTTPException)
    response = errors.response(errors.from_http(error, request.scope), request.scope)
    response.headers.update(error.headers or {})
    return response


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, OmlxError)
    note(request.scope, error)
    return errors.response(error, request.scope)


async def _gone(request: Request, error: Exception) -> Response:
    """Nobody reads this; the access log does."""
    return Response(status_code=CLIENT_GONE)
