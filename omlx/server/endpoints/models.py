"""Models: cards for clients that choose one, and endpoints to list, show, load and unload.

Field names are those read by clients: vLLM's `max_model_len`, LM Studio's `max_context_length`,
llama.cpp's `meta`, OpenRouter's `context_length`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from fastapi import Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from omlx.engine.types import ModelSnapshot
from omlx.errors import EngineDead, Forbidden, Reason
from omlx.models.catalog.catalog import Profile
from omlx.models.catalog.facts import ModelFacts, model_facts
from omlx.models.catalog.registry import ModelEntry
from omlx.models.library.choose import Library
from omlx.models.pool.pool import Pool, why_no_vision
from omlx.models.pool.served import ServedModel, State
from omlx.models.vision.support import read_vision_off
from omlx.server.dialects.openai.chat_request import ChatRequest
from omlx.server.endpoints import status
from omlx.server.http import errors
from omlx.server.http.guard import check_main, is_named
from omlx.server.http.transport import Json, read_body, while_connected
from omlx.server.request.fields import Body
from omlx.server.services import Services
from omlx.text.calls.markup import call_format
from omlx.text.reasoning import reasoning_format


@dataclass(frozen=True, slots=True)
class ModelCard:
    """Facts of a model's card. `served`, of a loaded model, is more precise than the files.

    `no_vision`: reason why images are not read. `profile`: set on the card of a profile.
    """

    entry: ModelEntry
    facts: ModelFacts
    context_length: int
    served: ServedModel | None = None
    no_vision: Reason | None = None
    profile: Profile | None = None

    @property
    def id(self) -> str:
        """Name that clients send as `model`."""
        return self.entry.id if self.profile is None else self.profile.id

    @property
    def input_modalities(self) -> list[str]:
        return ["text"] if self.no_vision is not None else ["text", "image"]

    @property
    def tools(self) -> bool:
        if self.served is None:
            return self.facts.tools
        return call_format(self.served.tokenizer) is not None

    @property
    def reasoning(self) -> bool:
        if self.served is None:
            return self.facts.reasoning
        return self.facts.reasoning or reasoning_format(self.served.tokenizer) is not None

    @property
    def library(self) -> str | None:
        """Library of the model's classes with its version."""
        library = self.entry.library
        if self.served is not None and self.served.identity.library:
            library = Library(self.served.identity.library)
        return None if library is None else library.label

    @property
    def capabilities(self) -> list[str]:
        """Abilities; `speculation` is known only for loaded models."""
        if self.facts.embeddings:
            return ["embeddings"]
        if self.facts.reranks:
            return ["rerank"]
        if not self.facts.generates:
            return []
        known = {
            "completion": True,
            "structured_output": True,
            "tools": self.tools,
            "reasoning": self.reasoning,
            "speculation": self.served is not None and self.served.off_reason is None,
        }
        return [name for name, has in known.items() if has]

    def record(self) -> Json:
        organisation, slash, _ = self.entry.id.partition("/")
        record = {
            "id": self.id,
            "object": "model",
            "created": self.facts.created,
            "owned_by": organisation if slash else "local",
            "context_length": self.context_length,
            "max_model_len": self.context_length,
            "max_context_length": self.context_length,
            "meta": {"n_ctx": self.context_length, "size": self.entry.size_bytes},
            "capabilities": self.capabilities,
            "input_modalities": self.input_modalities,
            "loaded": self.served is not None,
            "model_type": self.entry.model_type,
            "quantization": self.entry.quantization,
            "library": self.library,
            "size_bytes": self.entry.size_bytes,
        }
        if self.profile is not None:
            record["parent"] = self.entry.id
        return record


class ModelCards:
    """Cards of the usable models."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def all(self) -> list[ModelCard]:
        """Return each model, followed by its profiles."""
        cards = []
        for card in await self._cards(self._pool.models):
            profiles = self._pool.catalog.profiles(card.entry.id)
            cards += [card, *(replace(card, profile=profile) for profile in profiles)]
        return cards

    async def one(self, name: str | None) -> ModelCard:
        """Return the card of a model or profile. Raises as `Pool.resolve`."""
        (card,) = await self._cards([self._pool.resolve(name)])
        return replace(card, profile=self._pool.catalog.profile(name))

    async def _cards(self, entries: Sequence[ModelEntry]) -> list[ModelCard]:
        served = {model.id: model for model in self._pool.loaded}

        def read() -> list[ModelCard]:
            return [self._card(entry, served.get(entry.id)) for entry in entries]

        return await asyncio.to_thread(read)

    def _card(self, entry: ModelEntry, served: ServedModel | None) -> ModelCard:
        files = entry.files
        facts, no_vision = model_facts(files, entry.id), read_vision_off(files)
        settings = self._pool.catalog.configuration.resolve(entry.id).settings
        no_vision = why_no_vision(served, no_vision, vision=settings.vision)
        if served is not None:
            return ModelCard(entry, facts, served.context_length, served, no_vision)
        length = min(facts.longest_context, settings.max_context or facts.context_length)
        return ModelCard(entry, facts, length, no_vision=no_vision)


SNAPSHOT_TIMEOUT_S: Final = 2.0
_SHARED: Final = ("context_length", "loaded", "quantization", "size_bytes")
"""Fields of a model in both dialects."""


class UnloadRequest(Body):
    timeout: Annotated[float, Field(ge=0, le=86400, strict=False)] | None = None


@dataclass(frozen=True, slots=True)
class ModelEndpoints:
    services: Services
    cards: ModelCards

    async def list_models(self, request: Request) -> Response:
        """List all usable models, in the dialect of the client."""
        records = [card.record() for card in await self.cards.all()]
        if errors.speaks_anthropic(request.scope):
            return JSONResponse(_anthropic_list(records))
        return JSONResponse({"object": "list", "data": records})

    async def show_model(self, request: Request, name: str) -> Response:
        """Show a model: memory, speculation, batching, prefix cache.

        The id may contain slashes, raw or percent-encoded.
        """
        entry = self.services.pool.resolve(name)
        configured = await asyncio.to_thread(self.services.pool.speculation, entry.id)
        served = next((model for model in self.services.pool.loaded if model.id == entry.id), None)
        snapshot = await self._snapshot(served.id) if served is not None else None
        card = await self.cards.one(name)
        record = card.record()
        if errors.speaks_anthropic(request.scope):
            record = _anthropic_record(record) | {name: record[name] for name in _SHARED}
        record |= status.memory(self.services.pool.status(entry.id))
        record["fallback_for"] = None
        if not is_named(request.scope):  # other keys have asked for these names
            fallbacks = self.services.pool.catalog.fallbacks.values()
            record["fallback_for"] = status.fallbacks(fallbacks, entry.id)
        record["kv_cache"] = status.kv_cache(served)
        record["exactness"] = status.exactness(configured, served)
        record["speculation"] = status.speculation(
            configured, served, snapshot, self.services.activity.recent(entry.id)
        )
        record["vocabulary"] = status.vocabulary(served)
        record["vision"] = status.vision(card.no_vision, served)
        record["batching"] = record["prefixes"] = None
        if snapshot is not None:
            record["batching"] = status.batching(snapshot.unbatchable)
            beginnings = await self.services.prefixes.beginnings(entry.id)
            record["prefixes"] = status.prefixes(snapshot.prefix) | {
                "beginnings": [beginning.to_json() for beginning in beginnings],
                "prewarming": status.prewarming(self.services.prefixes.prewarming(entry.id)),
            }
        return JSONResponse(record)

    async def load_model(self, request: Request, name: str) -> Response:
        """Load a model; answers once the weights are in memory.

        Loading continues if the client disconnects.
        """
        return await self._move(request, name, self.services.pool.load)

    async def unload_model(self, request: Request, name: str) -> Response:
        """Unload a model; answers once its running requests have ended and its memory is free.

        After `timeout` seconds of the body, answers with status 202 while the model drains.
        """
        limit_s = UnloadRequest.parse(await request.body() or b"{}").timeout

        async def unload(name: str) -> None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.services.pool.unload(name), limit_s)

        response = await self._move(request, name, unload)
        if self.services.pool.status(self.services.pool.entry(name).id).state is State.DRAINING:
            response.status_code = 202
        return response

    async def clear(self, request: Request, name: str) -> Response:
        """Clear a model's prefix cache, on disk too."""
        check_main(request.scope)
        await self.services.prefixes.clear(name)
        return Response(status_code=204)

    async def probe(self, request: Request, name: str) -> Response:
        """Count the cached prompt tokens of a chat request. Nothing is computed."""
        # An unknown model is reported before a body that cannot be read.
        self.services.pool.resolve(name)
        asked = await read_body(request, lambda body: ChatRequest.parse(body).generation_request())
        return JSONResponse(await self.services.prefixes.probe(name, asked))

    async def _move(
        self, request: Request, name: str, move: Callable[[str], Coroutine[Any, Any, None]]
    ) -> Response:
        if "origin" in request.headers:  # a web page: pages must log in to the dashboard instead
            raise Forbidden("guard.page")
        check_main(request.scope)
        await request.body()
        await while_connected(request.receive, move(name))
        return await self.show_model(request, name)

    async def _snapshot(self, model: str) -> ModelSnapshot | None:
        """Return a snapshot; None if the engine is dead or busy, as with loading: a status does not
        wait.
        """
        with suppress(TimeoutError, EngineDead):
            snapshot = asyncio.wrap_future(self.services.engine.snapshot(model))
            return await asyncio.wait_for(snapshot, SNAPSHOT_TIMEOUT_S)
        return None


def _anthropic_list(records: Sequence[Json]) -> Json:
    ids = [record["id"] for record in records] or [None]
    data = [_anthropic_record(record) for record in records]
    return {"data": data, "has_more": False, "first_id": ids[0], "last_id": ids[-1]}


def _anthropic_record(record: Json) -> Json:
    created = datetime.fromtimestamp(record["created"], UTC).isoformat().replace("+00:00", "Z")
    return {
        "type": "model",
        "id": record["id"],
        "display_name": record["id"],
        "created_at": created,
        "max_input_tokens": record["context_length"],
    }


_CAPABILITIES: Final = {"tools": "tool_use"}
"""LM Studio's names of capabilities."""


class LmStudioEndpoints:
    def __init__(self, cards: ModelCards) -> None:
        self._cards = cards

    async def models(self, request: Request) -> Response:
        """List the usable models, in LM Studio's dialect."""
        records = [_record(card) for card in await self._cards.all()]
        return JSONResponse({"object": "list", "data": records})

    async def model(self, request: Request, name: str) -> Response:
        """Show a model. The id may contain slashes, raw or percent-encoded."""
        return JSONResponse(_record(await self._cards.one(name)))


def _record(card: ModelCard) -> Json:
    publisher, slash, _ = card.entry.id.partition("/")
    abilities = [_CAPABILITIES[name] for name in card.capabilities if name in _CAPABILITIES]
    record: Json = {
        "id": card.id,
        "object": "model",
        "type": _kind(card),
        "publisher": publisher if slash else "local",
        "arch": card.entry.model_type or "",
        "compatibility_type": "mlx",
        "quantization": (card.entry.quantization or "").replace("-", ""),
        "state": "not-loaded" if card.served is None else "loaded",
        "max_context_length": card.context_length,
        "capabilities": abilities,
    }
    if card.served is not None:
        record["loaded_context_length"] = card.served.context_length
    return record


def _kind(card: ModelCard) -> str:
    if card.facts.embeddings:
        return "embeddings"
    return "llm" if card.no_vision is not None else "vlm"
