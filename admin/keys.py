"""The page of named API keys."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse, Response

from omlx.clients.apps import client_name
from omlx.errors import Reason
from omlx.models.catalog.catalog import Catalog
from omlx.server.http.guard import ApiKeys
from omlx.server.request.fields import read
from omlx.server.request.last_seen import LastSeen
from omlx.settings.keys import EVERY_MODEL, KeyFile, NamedKey

from .web.addresses import KEYS, PARTS
from .web.pages import Pages, page


@dataclass(frozen=True, slots=True)
class KeysView:
    """`problem`: why the file is ignored.

    `required`: requests need a key. `has_main`: the settings hold a key. `keyless`: programs that
    sent requests without one.
    """

    rows: Sequence[NamedKey]
    problem: Reason | None
    required: bool
    has_main: bool
    keyless: Sequence[str] = ()


class NewKey(BaseModel):
    """Body of a new key; `models` are patterns."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    models: Annotated[list[str], Field(max_length=1000)] = [EVERY_MODEL]
    requests_per_minute: int | None = None


@dataclass(frozen=True, slots=True)
class KeysPage:
    """Named keys: the page, and `/admin/api/keys`. Only the answer to a creation holds the key."""

    keys: ApiKeys
    file: KeyFile
    catalog: Catalog
    seen: LastSeen

    def register(self, pages: Pages, api: APIRouter) -> None:
        pages.route(KEYS, page("keys/page.html", self._whole, "settings"))
        pages.part(f"{PARTS}/keys", page("keys/list.html", self._view))
        api.add_api_route("/keys", self.show, methods=["GET"])
        api.add_api_route("/keys", self.create, methods=["POST"])
        api.add_api_route("/keys/{name}", self.revoke, methods=["DELETE"])

    async def _whole(self, request: Request) -> KeysView:
        view = keys_view(self.keys)
        programs = {client_name(seen.client): None for seen in self.seen.programs}
        return view if view.required else replace(view, keyless=list(programs))

    async def _view(self, request: Request) -> KeysView:
        return keys_view(self.keys)

    async def show(self, request: Request) -> Response:
        keys = await asyncio.to_thread(self.file.read)
        return JSONResponse({"keys": [key.record() for key in keys]})

    async def create(self, request: Request) -> Response:
        """Create a key. `unmatched` in the answer: patterns without a model on this machine."""
        new = read(NewKey, await request.body())
        key = await asyncio.to_thread(self.file.add, new.name, new.models, new.requests_per_minute)
        unmatched = self.catalog.unmatched(new.models)
        return JSONResponse({"name": new.name, "key": key, "unmatched": unmatched}, 201)

    async def revoke(self, request: Request, name: str) -> Response:
        await asyncio.to_thread(self.file.revoke, name)
        return Response(status_code=204)


def keys_view(keys: ApiKeys) -> KeysView:
    required, problem = keys.required, None
    if keys.problem is not None:
        problem = Reason(keys.problem.code, keys.problem.params)
    return KeysView(tuple(keys.named), problem, required, keys.main is not None)
