"""The application: middleware, routes, and the translation of errors to responses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, TypeAlias

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from omlx import __version__
from omlx.errors import OmlxError
from omlx.models.pool.pool import load_pinned
from omlx.server.endpoints import ollama as ollama_generation
from omlx.server.endpoints import ollama_downloads as ollama_downloads
from omlx.server.endpoints import ollama_embeddings as ollama_embeddings
from omlx.server.endpoints import ollama_models as ollama_models
from omlx.server.endpoints.anthropic import MessageEndpoints
from omlx.server.endpoints.chat import ChatEndpoint
from omlx.server.endpoints.completions import CompletionEndpoint
from omlx.server.endpoints.embedding import EmbeddingService
from omlx.server.endpoints.health import HealthEndpoints
from omlx.server.endpoints.lmstudio import LmStudioEndpoints
from omlx.server.endpoints.model_cards import ModelCards
from omlx.server.endpoints.models import ModelEndpoints
from omlx.server.endpoints.openai_embeddings import EmbeddingEndpoint
from omlx.server.endpoints.prefixes import PrefixEndpoints
from omlx.server.endpoints.rerank import RerankService
from omlx.server.endpoints.rerank_endpoint import RerankEndpoint
from omlx.server.endpoints.responder import Responder
from omlx.server.endpoints.responses import ResponseEndpoints
from omlx.server.endpoints.tokens import TokenEndpoints
from omlx.server.http import errors
from omlx.server.http.access import AccessLog
from omlx.server.http.connection import ClientGone, note
from omlx.server.http.guard import AccessGuard
from omlx.server.http.paths import PathVersion
from omlx.server.openapi import Application
from omlx.server.request.outcome import CLIENT_GONE
from omlx.server.services import Services
from omlx.settings.schema import Settings

Route: TypeAlias = tuple[str, str, Callable[..., Awaitable[Response]]]
KEEP_ALIVE_S: Final = 5.0
SAVE_COSTS_S: Final = 300.0
SAVE_STATISTICS_S: Final = 10.0
SWEEP_S: Final = 1.0
PREWARM_S: Final = 1.0


def create_app(
    services: Services, settings: Settings, *, keep_alive_s: float = KEEP_ALIVE_S
) -> FastAPI:
    """The HTTP server over `services`, with its background tasks.

    A stream that is silent for `keep_alive_s` gets a comment, so that proxies and clients keep it
    open.
    """
    responder = Responder(services.generations, keep_alive_s, services.journal)
    responses = ResponseEndpoints(responder, services.generations)
    app = Application(
        title="omlx",
        version=__version__,
        lifespan=_lifespan(services, responses),
        middleware=_middleware(settings, services),
        docs_url=None,
        redoc_url=None,
    )
    cards = ModelCards(services.pool)
    routes = _routes(services, responder, responses, cards)
    for method, path, endpoint in routes + _local_routes(services, responder, cards):
        app.add_api_route(path, endpoint, methods=[method])
        if method == "GET":
            app.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False)
    app.add_exception_handler(OmlxError, _refused)
    app.add_exception_handler(HTTPException, misrouted)
    app.add_exception_handler(ClientGone, _gone)
    app.add_exception_handler(ClientDisconnect, _gone)
    return app


def _routes(
    services: Services, responder: Responder, responses: ResponseEndpoints, cards: ModelCards
) -> list[Route]:
    """The routes of OpenAI's and Anthropic's APIs and of our own: method, path, endpoint."""
    health = HealthEndpoints(services)
    models = ModelEndpoints(services, cards)
    prefixes = PrefixEndpoints(services.prefixes)
    tokens = TokenEndpoints(services.generations)
    chat = ChatEndpoint(responder)
    completions = CompletionEndpoint(responder)
    embeddings = EmbeddingEndpoint(EmbeddingService(services.pool, services.generations))
    reranking = RerankEndpoint(RerankService(services.pool, services.generations))
    messages = MessageEndpoints(responder, services.generations)
    return [
        ("GET", "/health", health.health),
        ("GET", "/metrics", health.metrics),
        ("GET", "/v1/models", models.list_models),
        ("GET", "/v1/models/{name:path}", models.show_model),
        ("GET", "/v1/responses/{id}", responses.show),
        ("GET", "/v1/responses/{id}/input_items", responses.items),
        ("POST", "/v1/chat/completions", chat.chat_completions),
        ("POST", "/v1/completions", completions.completions),
        ("POST", "/v1/embeddings", embeddings.embeddings),
        ("POST", "/v1/rerank", reranking.rerank),
        ("POST", "/v2/rerank", reranking.rerank),
        ("POST", "/v1/messages", messages.messages),
        ("POST", "/v1/messages/count_tokens", messages.count_tokens),
        ("POST", "/tokenize", tokens.tokenize),
        ("POST", "/detokenize", tokens.detokenize),
        ("POST", "/v1/models/{name:path}/load", models.load_model),
        ("POST", "/v1/models/{name:path}/unload", models.unload_model),
        ("POST", "/v1/responses", responses.create),
        ("POST", "/v1/responses/input_tokens", responses.input_tokens),
        ("POST", "/v1/responses/compact", responses.compact),
        ("DELETE", "/v1/responses/{id}", responses.delete),
        ("POST", "/v1/responses/{id}/cancel", responses.cancel),
        ("DELETE", "/v1/models/{name:path}/prefixes", prefixes.clear),
        ("POST", "/v1/models/{name:path}/prefixes/probe", prefixes.probe),
    ]


def _local_routes(services: Services, responder: Responder, cards: ModelCards) -> list[Route]:
    """The routes of Ollama's API, and of LM Studio's about models."""
    pool = services.pool
    models = ollama_models.ModelEndpoints(pool, cards)
    generation = ollama_generation.GenerationEndpoints(responder, pool, cards)
    service = EmbeddingService(pool, services.generations)
    embeddings = ollama_embeddings.EmbeddingEndpoints(service, pool)
    downloads = ollama_downloads.DownloadEndpoints(pool, services.downloads)
    lmstudio = LmStudioEndpoints(cards)
    return [
        ("GET", "/", models.root),
        ("GET", "/api/version", models.version),
        ("GET", "/api/tags", models.tags),
        ("GET", "/api/ps", models.running),
        ("POST", "/api/show", models.show),
        ("POST", "/api/chat", generation.chat),
        ("POST", "/api/generate", generation.generate),
        ("POST", "/api/embed", embeddings.embed),
        ("POST", "/api/embeddings", embeddings.embeddings),
        ("POST", "/api/pull", downloads.pull),
        ("POST", "/api/create", models.unsupported),
        ("POST", "/api/copy", models.unsupported),
        ("POST", "/api/push", models.unsupported),
        ("DELETE", "/api/delete", models.unsupported),
        ("GET", "/api/v0/models", lmstudio.models),
        ("GET", "/api/v0/models/{name:path}", lmstudio.model),
    ]


def _lifespan(
    services: Services, responses: ResponseEndpoints
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """Run the background tasks of the model pool while the server runs.

    Those that watch settings files and drafts on disk are started by `omlx serve`.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        pool, history = services.pool, services.activity.history
        work = [
            pool.save_costs_every(SAVE_COSTS_S),
            pool.sweep_every(SWEEP_S),
            history.flush_every(SAVE_STATISTICS_S),
        ]
        tasks = [asyncio.create_task(task) for task in work]
        if (prewarmer := services.prewarmer) is not None:
            await asyncio.to_thread(prewarmer.store.read)
            work = [prewarmer.store.flush_every(SAVE_STATISTICS_S), prewarmer.run_every(PREWARM_S)]
            tasks += [asyncio.create_task(task) for task in work]
        load_pinned(pool)
        await responses.restore()
        yield
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await pool.save_costs()
        await asyncio.to_thread(history.flush)
        if prewarmer is not None:
            await asyncio.to_thread(prewarmer.store.flush)
        services.generations.shut_down()
        if services.journal is not None:
            await services.journal.flushed()
            services.journal.close()

    return lifespan


def _middleware(settings: Settings, services: Services) -> list[Middleware]:
    """Outermost first.

    CORS answers the preflight of every origin, which carries no key, and lets every page read what
    it gets: the guard refuses pages that are not allowed, and they can tell their user why.
    """
    hosts = (settings.host, *settings.allow_host)
    readable = Middleware(
        CORSMiddleware,
        allow_origin_regex=".*",
        allow_methods=["*"],
        allow_headers=["*"],
        allow_private_network=True,
    )
    guard = Middleware(
        AccessGuard, hosts=hosts, origins=settings.allow_origin, keys=services.api_keys
    )
    log = Middleware(AccessLog, metrics=services.metrics, activity=services.activity)
    return [Middleware(PathVersion), log, readable, guard]


async def misrouted(request: Request, error: Exception) -> Response:
    """Answer a request for an unknown path, or for a method that its path does not have."""
    assert isinstance(error, HTTPException)
    translated = errors.from_http(error, request.scope)
    note(request.scope, translated)
    response = errors.response(translated, request.scope)
    response.headers.update(error.headers or {})
    return response


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, OmlxError)
    note(request.scope, error)
    return errors.response(error, request.scope)


async def _gone(request: Request, error: Exception) -> Response:
    """The client has disconnected: only the access log sees this response."""
    return Response(status_code=CLIENT_GONE)
