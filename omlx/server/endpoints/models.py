"""Endpoints about the models: list, show, load, unload."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from fastapi import Request
from pydantic import BaseModel, Field, ValidationError
from starlette.responses import JSONResponse, Response

from omlx.engine.types import ModelSnapshot
from omlx.errors import EngineDead, Forbidden
from omlx.models.pool.served import State
from omlx.server.endpoints import status
from omlx.server.endpoints.model_cards import ModelCards
from omlx.server.http import errors
from omlx.server.http.connection import while_connected
from omlx.server.http.errors import from_validation
from omlx.server.http.keys import check_main
from omlx.server.request.dialect import Json
from omlx.server.services import Services

SNAPSHOT_TIMEOUT_S: Final = 2.0
_SHARED: Final = ("context_length", "loaded", "quantization", "size_bytes")
"""Fields of a model in both dialects."""


class UnloadRequest(BaseModel):
    timeout: Annotated[float, Field(ge=0, le=86400)] | None = None


class ModelEndpoints:
    def __init__(self, services: Services, cards: ModelCards) -> None:
        self._cards = cards
        self._engine = services.engine
        self._pool = services.pool
        self._activity = services.activity
        self._prefixes = services.prefixes

    async def list_models(self, request: Request) -> Response:
        """All usable models, in either dialect."""
        records = [card.record() for card in await self._cards.all()]
        if errors.speaks_anthropic(request.scope):
            return JSONResponse(_anthropic_list(records))
        return JSONResponse({"object": "list", "data": records})

    async def show_model(self, request: Request, name: str) -> Response:
        """One model: its place in memory, speculation, batching, prefix cache.

        Its id may contain slashes, raw or percent-encoded.
        """
        entry = self._pool.resolve(name)
        configured = await asyncio.to_thread(self._pool.speculation, entry.id)
        served = next((model for model in self._pool.loaded if model.id == entry.id), None)
        snapshot = await self._snapshot(served.id) if served is not None else None
        card = await self._cards.one(name)
        record = card.record()
        if errors.speaks_anthropic(request.scope):
            record = _anthropic_record(record) | {name: record[name] for name in _SHARED}
        record |= status.memory(self._pool.status(entry.id))
        record["exactness"] = status.exactness(configured, served)
        record["speculation"] = status.speculation(
            configured, served, snapshot, self._activity.recent(entry.id)
        )
        record["vocabulary"] = status.vocabulary(served)
        record["vision"] = status.vision(card.no_vision, served)
        record["batching"] = record["prefixes"] = None
        if snapshot is not None:
            record["batching"] = status.batching(snapshot.unbatchable)
            beginnings = await self._prefixes.beginnings(entry.id)
            record["prefixes"] = status.prefixes(snapshot.prefix) | {
                "beginnings": [beginning.to_json() for beginning in beginnings],
                "prewarming": status.prewarming(self._prefixes.prewarming(entry.id)),
            }
        return JSONResponse(record)

    async def load_model(self, request: Request, name: str) -> Response:
        """Load a model; answers when it is in memory.

        Loading continues if the client disconnects.
        """
        return await self._move(request, name, self._pool.load)

    async def unload_model(self, request: Request, name: str) -> Response:
        """Unload a model; answers when it is out of memory, after its running requests have
        ended, or with status 202 after `timeout` seconds of the body, while it drains."""
        limit_s = _unload_timeout(await request.body())

        async def unload(name: str) -> None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._pool.unload(name), limit_s)

        response = await self._move(request, name, unload)
        if self._pool.status(self._pool.entry(name).id).state is State.DRAINING:
            response.status_code = 202
        return response

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
        """None while the engine is busy with something long, such as loading, or dead: a status
        does not wait."""
        with suppress(TimeoutError, EngineDead):
            snapshot = asyncio.wrap_future(self._engine.snapshot(model))
            return await asyncio.wait_for(snapshot, SNAPSHOT_TIMEOUT_S)
        return None


def _unload_timeout(body: bytes) -> float | None:
    """Return the seconds to wait, None without a limit. Raises BadRequest."""
    if not body:
        return None
    try:
        return UnloadRequest.model_validate_json(body).timeout
    except ValidationError as error:
        raise from_validation(error) from error


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
