"""The models as the dashboard lists them, moving them in and out of memory, and what is kept of their prefixes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse, Response

from omlx.models.catalog.entry import ModelEntry
from omlx.models.pool.pool import Pool
from omlx.models.pool.speculation_status import reason_record
from omlx.server import status
from omlx.server.connection import while_connected
from omlx.server.fields import read
from omlx.server.generation_request import GenerationRequest
from omlx.server.prefixes import PrefixService

from ..login.routes import Gate
from ..settings.view import Json


class Probed(BaseModel):
    """A prompt, as the only message of a user."""

    model_config = ConfigDict(extra="forbid", strict=True)

    prompt: Annotated[str, Field(min_length=1)]


class ModelsRoutes:
    def __init__(self, gate: Gate, pool: Pool, prefixes: PrefixService) -> None:
        self._gate = gate
        self._pool = pool
        self._prefixes = prefixes

    def routes(self) -> APIRouter:
        router = APIRouter(prefix="/admin/api")
        router.add_api_route("/models", self.show, methods=["GET"])
        router.add_api_route("/models/{name:path}/load", self.load, methods=["POST"])
        router.add_api_route("/models/{name:path}/unload", self.unload, methods=["POST"])
        router.add_api_route(
            "/models/{name:path}/prefixes", self.clear_prefixes, methods=["DELETE"]
        )
        router.add_api_route(
            "/models/{name:path}/prefixes/probe", self.probe_prefixes, methods=["POST"]
        )
        return router

    async def show(self, request: Request) -> Response:
        """Everything that was found, usable or not, and what memory there is."""
        self._gate.session(request)
        memory = {"limit_bytes": self._pool.limit_bytes, "used_bytes": self._pool.used_bytes}
        models = [self._view(entry) for entry in self._pool.registry.entries]
        return JSONResponse({"memory": memory, "default": self._pool.default, "models": models})

    async def load(self, request: Request, name: str) -> Response:
        """Answers when the model is in memory."""
        self._gate.session(request)
        await request.body()
        await while_connected(request.receive, self._pool.load(name))
        return JSONResponse(self._view(self._pool.resolve(name)))

    async def unload(self, request: Request, name: str) -> Response:
        """Answers when the model is out of memory; stops it from loading."""
        self._gate.session(request)
        await request.body()
        await while_connected(request.receive, self._pool.unload(name))
        return JSONResponse(self._view(self._pool.resolve(name)))

    async def clear_prefixes(self, request: Request, name: str) -> Response:
        """Answers when they are forgotten. A model that is not in memory has none."""
        self._gate.session(request)
        await self._prefixes.clear(name)
        return Response(status_code=204)

    async def probe_prefixes(self, request: Request, name: str) -> Response:
        """How much of a prompt is kept; null for a model that is not in memory. Nothing is computed."""
        self._gate.session(request)
        prompt = read(Probed, await request.body()).prompt
        asked = GenerationRequest(messages=[{"role": "user", "content": prompt}])
        return JSONResponse(await self._prefixes.probe(name, asked))

    def _view(self, entry: ModelEntry) -> Json:
        return {
            "id": entry.id,
            "status": entry.status.value,
            "reason": None if entry.reason is None else reason_record(entry.reason),
            "found_in": entry.source,
            "path": str(entry.path),
            "size_bytes": entry.size_bytes,
            "model_type": entry.model_type,
            "quantization": entry.quantization,
            **status.memory(self._pool.status(entry.id)),
        }
