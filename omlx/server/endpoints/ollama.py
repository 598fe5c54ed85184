"""Ollama's API: models, chat and completions, downloads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from math import isinf
from time import monotonic
from typing import Any, Final

from fastapi import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from omlx import __version__
from omlx.errors import BadRequest, Forbidden, ModelError, NotFound, OmlxError
from omlx.models.catalog.catalog import LATEST
from omlx.models.catalog.reference import Reference
from omlx.models.hub.downloads import Downloads
from omlx.models.pool.pool import Pool
from omlx.models.pool.served import ModelStatus
from omlx.server.dialects.ollama.fields import Named, iso
from omlx.server.dialects.ollama.request import GenerateRequest, Generating, OllamaChatRequest
from omlx.server.endpoints.generation import Responder
from omlx.server.endpoints.models import ModelCard, ModelCards
from omlx.server.http import errors
from omlx.server.http.errors import field_error
from omlx.server.http.guard import MAIN_KEY, key_of
from omlx.server.http.transport import NDJSON, EventStream, Json, read_body, while_connected
from omlx.server.request.dialect import Encoder, Exchange, json_line
from omlx.server.request.generation import GenerationService
from omlx.server.request.stream import GenerationStream

VERSION: Final = "0.18.3"
"""Imitated version of Ollama — programs require a minimum."""
NEVER: Final = "2318-01-01T00:00:00Z"
"""Unload time of a model that stays in memory."""
_CAPABILITIES: Final = {
    "completion": "completion",
    "tools": "tools",
    "reasoning": "thinking",
    "embeddings": "embedding",
}
"""Ollama's names of capabilities."""
_VISION: Final = "vision"


POLL_S: Final = 0.25
"""Seconds between progress reports."""
LISTED_S: Final = 15.0
"""Seconds for a downloaded model to be listed — another task watches the folders."""
_SUCCESS: Final[Json] = {"status": "success"}


class ShowRequest(Named):
    """The body of POST /api/show."""


class PullRequest(Named):
    """The body of POST /api/pull."""

    stream: bool | None = None


@dataclass(frozen=True, slots=True)
class OllamaEndpoints:
    responder: Responder
    generations: GenerationService
    pool: Pool
    cards: ModelCards
    downloads: Downloads

    async def root(self, request: Request) -> Response:
        """Answer a line of text, for programs and people that probe for a server."""
        return PlainTextResponse(f"omlx {__version__} is running\n")

    async def version(self, request: Request) -> Response:
        return JSONResponse({"version": VERSION})

    async def tags(self, request: Request) -> Response:
        """List the usable models."""
        return JSONResponse({"models": [_tag(card) for card in await self.cards.all()]})

    async def running(self, request: Request) -> Response:
        """List the models in memory, with the time of unloading if unused.

        A profile is not listed: it is no copy of its model.
        """
        cards = await self.cards.all()
        loaded = [card for card in cards if card.served is not None and card.profile is None]
        return JSONResponse({"models": [self._running(card) for card in loaded]})

    async def show(self, request: Request) -> Response:
        """Show a model: context length and capabilities."""
        body = await read_body(request, ShowRequest.parse)
        return JSONResponse(_shown(await self.cards.one(body.id)))

    async def unsupported(self, request: Request) -> Response:
        """Refuse: models are changed in the dashboard and on the command line."""
        raise BadRequest("ollama.models", param="model", path=request.url.path)

    def _running(self, card: ModelCard) -> Json:
        status = self.pool.status(card.entry.id)
        tag = _tag(card)
        del tag["modified_at"]
        return tag | {
            "size": status.weights_bytes,
            "size_vram": status.weights_bytes,
            "context_length": card.context_length,
            "expires_at": _expires_at(status),
        }

    async def chat(self, request: Request) -> Response:
        """Answer a conversation, in Ollama's dialect."""
        return await self._respond(request, OllamaChatRequest)

    async def generate(self, request: Request) -> Response:
        """Answer a prompt, in Ollama's dialect."""
        return await self._respond(request, GenerateRequest)

    async def _respond(self, request: Request, kind: type[Generating]) -> Response:
        body, exchange = await read_body(request, partial(_parse, kind))
        keep_s = body.keep_s
        if exchange is None:
            return await self._load(request, body, await self.cards.one(body.id))
        card = await self.cards.one(self.generations.with_fallback(exchange.generation).model)
        if body.think and not card.reasoning:
            raise BadRequest("ollama.no_thinking", param="think", model=card.entry.id)

        def encoder(stream: GenerationStream) -> Encoder:
            if keep_s is not None:
                self.pool.residents.keep(stream.served.id, keep_s)
            return exchange.encoder(stream)

        return await self.responder.respond(request, replace(exchange, encoder=encoder))

    async def _load(self, request: Request, body: Generating, card: ModelCard) -> Response:
        """Load the model, or unload it if `keep_alive` is 0."""
        started_at, keep_s, model = monotonic(), body.keep_s, card.entry.id
        if keep_s != 0:
            await while_connected(request.receive, self.pool.load(model))
        if keep_s is not None:
            self.pool.residents.keep(model, keep_s)  # of 0 seconds: once its requests have ended
        reason = "unload" if keep_s == 0 else "load"
        return JSONResponse(body.no_answer(card.id, reason, (monotonic() - started_at) * 1000))

    async def pull(self, request: Request) -> Response:
        """Download a model; a model already here is a success. Continues if the client disconnects.

        Raises Forbidden without the key of the setting `api_key`: only its owner may fill the disk.
        """
        body = await read_body(request, PullRequest.parse)
        if body.id is None:
            raise field_error("request.missing", "model")
        name = body.id.removesuffix(LATEST)
        steps = self._steps(name, self._reference(request, name))
        if body.stream is not False:
            return EventStream(_frames(steps), lambda: None, NDJSON)
        return JSONResponse(await while_connected(request.receive, _last(steps)))

    def _reference(self, request: Request, name: str) -> Reference | None:
        """Return the download's reference; None for a model already here.

        Raises Forbidden without the main key, BadRequest and ModelError for other names.
        """
        if self._is_here(name):
            return None
        if key_of(request.scope) != MAIN_KEY:
            raise Forbidden("ollama.pull_key")
        reference = Reference.parse(name)
        if not reference.on_hub:
            raise BadRequest("ollama.pull_name", param="model", model=name)
        return reference

    def _is_here(self, name: str) -> bool:
        try:
            self.pool.catalog.target(name)
        except (NotFound, ModelError):
            return False
        return True

    async def _steps(self, name: str, reference: Reference | None) -> AsyncGenerator[Json, None]:
        """Yield progress reports. Raises ModelError for a failed download."""
        yield {"status": "pulling manifest"}
        if reference is not None:
            async with aclosing(self._progress(reference)) as progress:
                async for step in progress:
                    yield step
            await self._wait_until_listed(name)
        yield _SUCCESS

    async def _progress(self, reference: Reference) -> AsyncGenerator[Json, None]:
        digest = f"sha256:{sha256(reference.repository.encode()).hexdigest()}"
        task = asyncio.create_task(self.downloads.fetch(reference))
        try:
            while not task.done():
                await asyncio.wait([task], timeout=POLL_S)
                for download in await self.downloads.all():
                    if download.repository == reference.repository and download.total_bytes:
                        yield {
                            "status": f"pulling {reference}",
                            "digest": digest,
                            "total": download.total_bytes,
                            "completed": download.done_bytes,
                        }
        finally:
            task.cancel()  # the task only waits: the download continues
        failure = task.result()
        if failure is not None:
            params: dict[str, Any] = failure.params
            raise ModelError(failure.code, **params)

    async def _wait_until_listed(self, name: str) -> None:
        """Wait for a downloaded model. Raises NotFound without its arrival, ModelError for an
        unusable model.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(LISTED_S):
                while not self._is_here(name):
                    await asyncio.sleep(POLL_S)  # another task watches the folders
        self.pool.catalog.target(name)


def _expires_at(status: ModelStatus) -> str:
    if status.ttl_s is None or isinf(status.ttl_s):
        return NEVER
    return iso(time.time() + status.ttl_s - (status.idle_s or 0.0))


def _tag(card: ModelCard) -> Json:
    # clients append a tag to names without any, and compare
    name = card.id if ":" in card.id else card.id + LATEST
    return {
        "name": name,
        "model": name,
        "modified_at": iso(card.facts.created),
        "size": card.entry.size_bytes,
        "digest": sha256(card.id.encode()).hexdigest(),
        "details": _details(card),
    }


def _shown(card: ModelCard) -> Json:
    family = card.entry.model_type or ""
    capabilities = [_CAPABILITIES[name] for name in card.capabilities if name in _CAPABILITIES]
    if card.no_vision is None:
        capabilities.append(_VISION)
    return {
        "modelfile": "",
        "parameters": f"num_ctx {card.context_length}",
        "template": "",
        "modified_at": iso(card.facts.created),
        "details": _details(card),
        "capabilities": capabilities,
        "model_info": {
            "general.architecture": family,
            "general.basename": card.entry.name,
            f"{family}.context_length": card.context_length,
        },
    }


def _details(card: ModelCard) -> Json:
    family = card.entry.model_type or ""
    return {
        "parent_model": "" if card.profile is None else card.entry.id,
        "format": "safetensors",
        "family": family,
        "families": [family],
        "parameter_size": "",
        "quantization_level": card.entry.quantization or "",
    }


def _parse(kind: type[Generating], content: bytes) -> tuple[Generating, Exchange | None]:
    body = kind.parse(content)
    return body, None if body.empty else body.exchange()


async def _frames(steps: AsyncGenerator[Json, None]) -> AsyncGenerator[bytes, None]:
    """Yield a line per step; an error becomes the last line."""
    try:
        async with aclosing(steps):
            async for step in steps:
                yield json_line(step)
    except OmlxError as error:
        yield json_line(errors.ollama(error))


async def _last(steps: AsyncGenerator[Json, None]) -> Json:
    async with aclosing(steps):
        return [step async for step in steps][-1]
