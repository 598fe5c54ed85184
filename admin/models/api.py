"""API of the models: list, load, unload, and their prefix caches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse, Response

from omlx.models.catalog.entry import ModelEntry
from omlx.models.pool.pool import Pool
from omlx.models.pool.speculation_status import reason_to_json
from omlx.server import status
from omlx.server.connection import while_connected
from omlx.server.exactness import ExactnessService
from omlx.server.fields import read
from omlx.server.generation_request import GenerationRequest
from omlx.server.prefixes import PrefixService

from ..settings.view import Json


class PrefixProbe(BaseModel):
    """Body of a probe: a prompt, as the only message of a user."""

    model_config = ConfigDict(extra="forbid", strict=True)

    prompt: Annotated[str, Field(min_length=1)]


class Unloading(BaseModel):
    """Body of an unload. With `if_idle`, a model that requests use is not unloaded."""

    model_config = ConfigDict(extra="forbid", strict=True)

    if_idle: bool = False


@dataclass(frozen=True, slots=True)
class ModelsApi:
    pool: Pool
    prefixes: PrefixService
    exactness: ExactnessService

    def register(self, router: APIRouter) -> None:
        model = "/models/{name:path}"
        router.add_api_route("/models", self.show, methods=["GET"])
        router.add_api_route(f"{model}/load", self.load, methods=["POST"])
        router.add_api_route(f"{model}/unload", self.unload, methods=["POST"])
        router.add_api_route(f"{model}/exactness", self.measure_exactness, methods=["POST"])
        router.add_api_route(f"{model}/prefixes", self.clear_prefixes, methods=["DELETE"])
        router.add_api_route(f"{model}/prefixes/probe", self.probe_prefixes, methods=["POST"])

    async def show(self, request: Request) -> Response:
        """List every model of the registry, usable or not, and the memory of the pool."""
        memory = {"limit_bytes": self.pool.limit_bytes, "used_bytes": self.pool.used_bytes}
        models = [self._record(entry) for entry in self.pool.registry.entries]
        return JSONResponse({"memory": memory, "default": self.pool.default, "models": models})

    async def load(self, request: Request, name: str) -> Response:
        """Load a model; answers once it is in memory."""
        await request.body()
        await while_connected(request.receive, self.pool.load(name))
        return JSONResponse(self._record(self.pool.resolve(name)))

    async def unload(self, request: Request, name: str) -> Response:
        """Unload a model or cancel its loading; answers once it is out of memory.

        Its active requests end first. Raises Conflict during a trial of the model, and with
        `if_idle` for a model in use.
        """
        unloading = read(Unloading, await request.body() or b"{}")
        unload = self.pool.unload(name, if_idle=unloading.if_idle)
        await while_connected(request.receive, unload)
        return JSONResponse(self._record(self.pool.resolve(name)))

    async def measure_exactness(self, request: Request, name: str) -> Response:
        """Compare wide passes with single steps, between those of running requests.

        Answers once that is known; stops if the client disconnects.
        """
        await request.body()
        measured = await while_connected(request.receive, self.exactness.measure(name))
        return JSONResponse(measured.to_json())

    async def clear_prefixes(self, request: Request, name: str) -> Response:
        """Clear the prefix cache, on disk too."""
        await self.prefixes.clear(name)
        return Response(status_code=204)

    async def probe_prefixes(self, request: Request, name: str) -> Response:
        """Return the cached length of a prompt, null for a model not in memory."""
        prompt = read(PrefixProbe, await request.body()).prompt
        chat = GenerationRequest(messages=[{"role": "user", "content": prompt}])
        return JSONResponse(await self.prefixes.probe(name, chat))

    def _record(self, entry: ModelEntry) -> Json:
        return {
            "id": entry.id,
            "status": entry.status.value,
            "reason": None if entry.reason is None else reason_to_json(entry.reason),
            "found_in": entry.source,
            "path": str(entry.path),
            "size_bytes": entry.size_bytes,
            "model_type": entry.model_type,
            "quantization": entry.quantization,
            **status.memory(self.pool.status(entry.id)),
        }
