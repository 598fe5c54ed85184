"""The application: middleware, routes, and the translation of errors to responses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

from fastapi import FastAPI, Request
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from omlx import __version__
from omlx.engine.device_errors import DEVICE
from omlx.errors import EngineDead, OmlxError
from omlx.models.pool.pool import load_pinned
from omlx.server.access import AccessLog, PathVersion
from omlx.server.dialects.anthropic.request import MessageRequest
from omlx.server.dialects.ollama.request import GenerateRequest, OllamaChatRequest
from omlx.server.dialects.openai.chat_request import ChatRequest
from omlx.server.dialects.openai.completions_request import CompletionRequest
from omlx.server.dialects.openai.responses_request import ResponseRequest
from omlx.server.endpoints.generation import (
    DetokenizeRequest,
    GenerationEndpoints,
    RequestEndpoints,
    Responder,
    TokenizeRequest,
)
from omlx.server.endpoints.models import LmStudioEndpoints, ModelCards, ModelEndpoints
from omlx.server.endpoints.ollama import OllamaEndpoints, PullRequest, ShowRequest
from omlx.server.endpoints.responses import ResponseEndpoints
from omlx.server.endpoints.sessions import SaveRequest, SessionEndpoints, SessionFile
from omlx.server.endpoints.texts import (
    EmbeddingRequest,
    EmbeddingsRequest,
    EmbedRequest,
    RerankRequest,
    TextEndpoints,
)
from omlx.server.http import errors
from omlx.server.http.guard import AccessGuard, check_main
from omlx.server.http.transport import ClientGone, Json, note
from omlx.server.request.activity import CLIENT_GONE
from omlx.server.request.fields import Body
from omlx.server.services import Services
from omlx.settings.schema import Settings

_ERRORS: Final[Json] = {
    "4XX": {"description": "What is wrong with the request, in the dialect of the path"},
    "5XX": {"description": "What is wrong here: no room, or the engine is gone"},
}
KEEP_ALIVE_S: Final = 5.0
SAVE_COSTS_S: Final = 300.0
SAVE_STATISTICS_S: Final = 10.0
SWEEP_S: Final = 1.0
SAMPLE_S: Final = 5.0
PREWARM_S: Final = 1.0

log = logging.getLogger("omlx.server")


@dataclass(frozen=True, slots=True)
class Route:
    """A path of the API and its endpoint.

    `body` is the pydantic model in the OpenAPI document; `name` the operation's name there, by
    default the endpoint's.
    """

    method: str
    path: str
    endpoint: Callable[..., Awaitable[Response]]
    body: type[Body] | None = None
    name: str | None = None


class Application(FastAPI):
    """Adds request bodies to the OpenAPI document: endpoints parse bodies themselves.

    The framework does not validate, so that errors are in the dialect of the path. `responses`: the
    endpoints of the Responses API, which the dashboard's chat page uses, too.
    """

    def __init__(self, responses: ResponseEndpoints, **options: Any) -> None:
        super().__init__(**options)
        self.responses = responses
        self._bodies: dict[str, type[Body]] = {}

    def add(self, route: Route) -> None:
        self.add_api_route(route.path, route.endpoint, methods=[route.method], name=route.name)
        if route.method == "GET":
            self.add_api_route(
                route.path, route.endpoint, methods=["HEAD"], include_in_schema=False
            )
        if route.body is not None:
            self._bodies[route.path.replace(":path", "")] = route.body

    def openapi(self) -> dict[str, Any]:
        """Return the framework's document with our request bodies and error responses."""
        if self.openapi_schema is not None:
            return self.openapi_schema
        document = super().openapi()
        schemas, shared = models_json_schema(
            [(body, "validation") for body in dict.fromkeys(self._bodies.values())],
            ref_template="#/components/schemas/{model}",
        )
        references = {body: schema for (body, _), schema in schemas.items()}
        for path, operations in document["paths"].items():
            for operation in operations.values():
                ok = operation["responses"].get("200", {"description": "OK"})
                operation["responses"] = {"200": ok, **_ERRORS}
                if (body := self._bodies.get(path)) is not None:
                    content = {"application/json": {"schema": references[body]}}
                    operation["requestBody"] = {"required": True, "content": content}
        document["components"] = {"schemas": shared["$defs"]}
        return document


def create_app(
    services: Services, settings: Settings, *, keep_alive_s: float = KEEP_ALIVE_S
) -> Application:
    """Build the HTTP server over `services`, with its background tasks.

    A stream gets a comment after `keep_alive_s` of silence, so that proxies and clients keep it
    open.
    """
    responder = Responder(services.tool_loops, keep_alive_s, services.journal)
    responses = ResponseEndpoints(responder)
    app = Application(
        responses,
        title="omlx",
        version=__version__,
        lifespan=_lifespan(services, responses),
        middleware=_middleware(settings, services),
        docs_url=None,
        redoc_url=None,
    )
    for route in _routes(services, responder, responses):
        app.add(route)
    app.add_exception_handler(OmlxError, _refused)
    app.add_exception_handler(HTTPException, misrouted)
    app.add_exception_handler(ClientGone, _gone)
    app.add_exception_handler(ClientDisconnect, _gone)
    return app


def _routes(services: Services, responder: Responder, responses: ResponseEndpoints) -> list[Route]:
    """Return every route of the API, in the order of the OpenAPI document."""
    pool, generations, cards = services.pool, services.generations, ModelCards(services.pool)
    health, sessions = HealthEndpoints(services), SessionEndpoints(responses, services)
    models, lmstudio = ModelEndpoints(services, cards), LmStudioEndpoints(cards)
    answers = GenerationEndpoints(responder, generations)
    texts = TextEndpoints(pool, generations)
    requests = RequestEndpoints(services.activity, generations)
    ollama = OllamaEndpoints(responder, generations, pool, cards, services.downloads)
    model, response = "/v1/models/{name:path}", "/v1/responses/{id}"
    return [
        Route("GET", "/health", health.health),
        Route("GET", "/metrics", health.metrics),
        Route("GET", "/v1/models", models.list_models),
        Route("GET", model, models.show_model),
        Route("GET", response, responses.show),
        Route("GET", f"{response}/input_items", responses.items),
        Route("POST", "/v1/chat/completions", answers.chat_completions, ChatRequest),
        Route("POST", "/v1/completions", answers.completions, CompletionRequest),
        Route("POST", "/v1/embeddings", texts.embeddings, EmbeddingRequest),
        Route("POST", "/v1/rerank", texts.rerank, RerankRequest),
        Route("POST", "/v2/rerank", texts.rerank, RerankRequest),
        Route("POST", "/v1/messages", answers.messages, MessageRequest),
        Route("POST", "/v1/messages/count_tokens", answers.count_tokens, MessageRequest),
        Route("POST", "/tokenize", answers.tokenize, TokenizeRequest),
        Route("POST", "/detokenize", answers.detokenize, DetokenizeRequest),
        Route("POST", f"{model}/load", models.load_model),
        Route("POST", f"{model}/unload", models.unload_model),
        Route("POST", "/v1/responses", responses.create, ResponseRequest),
        Route("POST", "/v1/responses/input_tokens", responses.input_tokens, ResponseRequest),
        Route("POST", "/v1/responses/compact", responses.compact),
        Route("DELETE", response, responses.delete),
        Route("POST", f"{response}/cancel", responses.cancel),
        Route("POST", f"{response}/fork", sessions.fork),
        Route("POST", "/v1/sessions/save", sessions.save, SaveRequest),
        Route("POST", "/v1/sessions/open", sessions.open, SessionFile),
        Route("GET", "/v1/requests", requests.list_requests),
        Route("POST", "/v1/requests/{id}/cancel", requests.cancel),
        Route("DELETE", f"{model}/prefixes", models.clear),
        Route("POST", f"{model}/prefixes/probe", models.probe, ChatRequest),
        Route("GET", "/", ollama.root),
        Route("GET", "/api/version", ollama.version),
        Route("GET", "/api/tags", ollama.tags),
        Route("GET", "/api/ps", ollama.running),
        Route("POST", "/api/show", ollama.show, ShowRequest),
        Route("POST", "/api/chat", ollama.chat, OllamaChatRequest),
        Route("POST", "/api/generate", ollama.generate, GenerateRequest),
        Route("POST", "/api/embed", texts.embed, EmbedRequest),
        Route("POST", "/api/embeddings", texts.embed_one, EmbeddingsRequest, "embeddings"),
        Route("POST", "/api/pull", ollama.pull, PullRequest),
        Route("POST", "/api/create", ollama.unsupported),
        Route("POST", "/api/copy", ollama.unsupported),
        Route("POST", "/api/push", ollama.unsupported),
        Route("DELETE", "/api/delete", ollama.unsupported),
        Route("GET", "/api/v0/models", lmstudio.models),
        Route("GET", "/api/v0/models/{name:path}", lmstudio.model),
    ]


def _lifespan(
    services: Services, responses: ResponseEndpoints
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """Run the background tasks of the services while the server runs.

    `omlx serve` starts those that watch models, drafts and settings files.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        pool, minutes, history = services.pool, services.activity.minutes, services.activity.history
        work = [
            every(SAVE_COSTS_S, pool.save_costs, "costs of passes not saved"),
            every(SWEEP_S, pool.evictor.sweep, "sweep failed"),
            every(SWEEP_S, services.toolbox.end_removed, "removed tool servers not ended"),
            every(SAVE_STATISTICS_S, partial(asyncio.to_thread, history.flush), "usage not saved"),
            minutes.sample_every(SAMPLE_S, lambda: pool.used_bytes),
            minutes.watch_heat(),
        ]
        tasks = [asyncio.create_task(task) for task in work]
        if (prewarmer := services.prewarmer) is not None:
            await asyncio.to_thread(prewarmer.store.read)
            flush = partial(asyncio.to_thread, prewarmer.store.flush)
            work = [
                every(SAVE_STATISTICS_S, flush, "beginnings of prompts not saved"),
                every(PREWARM_S, prewarmer.run, "beginnings of prompts not computed"),
            ]
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
        await services.toolbox.close()
        if services.journal is not None:
            await services.journal.flushed()
            services.journal.close()

    return lifespan


async def every(interval_s: float, work: Callable[[], Awaitable[object]], failure: str) -> None:
    """Do `work` each `interval_s` until cancelled or the engine dies; log errors as `failure`."""
    while True:
        await asyncio.sleep(interval_s)
        try:
            await work()
        except EngineDead:
            return
        except Exception:  # the edge of a background task
            log.exception(failure)


def _middleware(settings: Settings, services: Services) -> list[Middleware]:
    """Return the middleware, outermost first.

    CORS admits every origin: a preflight carries no key, and a refused page can read why the guard
    refused.
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
    """Answer a request for an unknown path, or for an unsupported method of a known path."""
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
    """Return a response for the access log only: the client has disconnected."""
    return Response(status_code=CLIENT_GONE)


@dataclass(frozen=True, slots=True)
class HealthEndpoints:
    services: Services

    async def health(self, request: Request) -> Response:
        """Return 200 while the engine thread lives, with the newest device error if there was one.

        Says nothing about models.
        """
        if (failure := self.services.engine.failure) is not None:
            failed = {"status": "error", **errors.openai(failure)}
            return JSONResponse({**failed, **_device_error()}, 503)
        return JSONResponse({"status": "ok", **_device_error()})

    async def metrics(self, request: Request) -> Response:
        """Return metrics in the format of Prometheus."""
        check_main(request.scope)
        content, content_type = self.services.metrics.scrape(request.headers.get("accept", ""))
        return Response(content, headers={"Content-Type": content_type})


def _device_error() -> dict[str, Any]:
    """Return kind, mlx's text and Unix time of the newest device error; empty without one."""
    return {} if DEVICE.last is None else {"device_error": asdict(DEVICE.last)}
