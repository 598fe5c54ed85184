"""API of named API keys, below `/admin/api/keys`.

GET            the keys, without the keys themselves
POST           make a key; the answer alone has it
DELETE …/NAME  revoke a key
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse, Response

from omlx.models.catalog.catalog import Catalog
from omlx.server.fields import read
from omlx.settings.keys import EVERY_MODEL, KeyFile


class NewKey(BaseModel):
    """Body of a new key. `models` are patterns."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    models: Annotated[list[str], Field(max_length=1000)] = [EVERY_MODEL]
    requests_per_minute: int | None = None


@dataclass(frozen=True, slots=True)
class KeysApi:
    file: KeyFile
    catalog: Catalog

    def register(self, router: APIRouter) -> None:
        router.add_api_route("/keys", self.show, methods=["GET"])
        router.add_api_route("/keys", self.create, methods=["POST"])
        router.add_api_route("/keys/{name}", self.revoke, methods=["DELETE"])

    async def show(self, request: Request) -> Response:
        keys = await asyncio.to_thread(self.file.read)
        return JSONResponse({"keys": [key.record() for key in keys]})

    async def create(self, request: Request) -> Response:
        """`unmatched` are the patterns that no model of this machine matches."""
        new = read(NewKey, await request.body())
        key = await asyncio.to_thread(self.file.add, new.name, new.models, new.requests_per_minute)
        unmatched = self.catalog.unmatched(new.models)
        return JSONResponse({"name": new.name, "key": key, "unmatched": unmatched}, 201)

    async def revoke(self, request: Request, name: str) -> Response:
        await asyncio.to_thread(self.file.revoke, name)
        return Response(status_code=204)
