"""API of downloads, below `/admin/api/downloads`.

POST   …/search         ask the hub; answers with the number of results, which the page shows
POST   …                download a model, and the draft that goes with it
POST   …/NAME/pause     stop; what is here stays
POST   …/NAME/resume    continue
DELETE …/NAME           stop, and delete what came; a complete model stays

DELETE /admin/api/models/NAME   delete a model of the hub's cache
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse, Response

from omlx.errors import BadRequest, Conflict, ModelError, NotFound
from omlx.models.catalog.places import HUB_CACHE
from omlx.models.catalog.reference import Reference
from omlx.models.gguf.package import MODEL as PACKAGED
from omlx.models.hub.downloads import Downloads
from omlx.models.hub.with_draft import remember_draft
from omlx.models.pool.pool import Pool
from omlx.models.pool.resident import State
from omlx.server.connection import while_connected
from omlx.server.fields import read
from omlx.settings.configuration import LiveConfiguration

from .shelf import Shelf

Name = Annotated[str, Field(min_length=1, max_length=400)]


class Search(BaseModel):
    """Body of a search."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: Name


class Wanted(BaseModel):
    """Body of a download: references. `declared`: the model's package names the draft itself."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: Name
    draft: Name | None = None
    declared: bool = False


@dataclass(frozen=True, slots=True)
class DownloadsApi:
    downloads: Downloads
    pool: Pool
    configuration: LiveConfiguration
    shelf: Shelf

    def register(self, router: APIRouter) -> None:
        one = "/downloads/{name:path}"
        router.add_api_route("/downloads/search", self.search, methods=["POST"])
        router.add_api_route("/downloads", self.start, methods=["POST"])
        router.add_api_route(f"{one}/pause", self.pause, methods=["POST"])
        router.add_api_route(f"{one}/resume", self.resume, methods=["POST"])
        router.add_api_route(one, self.discard, methods=["DELETE"])
        router.add_api_route("/models/{name:path}", self.delete, methods=["DELETE"])

    async def search(self, request: Request) -> Response:
        text = read(Search, await request.body()).text.strip()
        offers = await while_connected(request.receive, self.downloads.search(text))
        self.shelf.put(text, offers)
        return JSONResponse({"text": text, "count": len(offers)})

    async def start(self, request: Request) -> Response:
        """Begin; the draft is stored as the model's, unless its package declares it."""
        wanted = read(Wanted, await request.body())
        references = [_reference(name) for name in (wanted.model, wanted.draft) if name]
        if len(references) > 1 and not wanted.declared:
            model, draft = references
            await asyncio.to_thread(
                remember_draft, self.configuration, model.repository, str(draft)
            )
        for reference in references:
            self.downloads.start(reference)
        return JSONResponse({"models": [str(reference) for reference in references]}, 202)

    async def pause(self, request: Request, name: str) -> Response:
        await self.downloads.pause(name)
        return Response(status_code=204)

    async def resume(self, request: Request, name: str) -> Response:
        await self.downloads.resume(name)
        return Response(status_code=204)

    async def discard(self, request: Request, name: str) -> Response:
        await self.downloads.discard(_reference(name).repository)
        return Response(status_code=204)

    async def delete(self, request: Request, name: str) -> Response:
        """Raises NotFound for a model of another folder, Conflict for one that is in memory."""
        entries = [entry for entry in self.pool.registry.entries if entry.source == HUB_CACHE]
        entry = next((entry for entry in entries if entry.id == name), None)
        if entry is None:
            raise NotFound("pull.not_in_cache", repository=name)
        if entry.usable and self.pool.status(name).state is not State.UNLOADED:
            raise Conflict("pull.in_memory", repository=name)
        await self.downloads.delete(name)
        return Response(status_code=204)


def _reference(name: str) -> Reference:
    """Raises BadRequest for a text of another form."""
    try:
        reference = Reference.parse(name)
    except ModelError as error:
        raise BadRequest(error.code, param=None, **error.params) from None
    if not reference.on_hub and name != PACKAGED:
        raise BadRequest("draft.malformed", draft=name)
    return reference
