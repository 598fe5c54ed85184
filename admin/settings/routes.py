"""Reading and changing what is kept: for all models, and for one.

A change is a PATCH: a value, or null so that the next source decides; what is left out stays. It names the state that
it changes (If-Match), so that of two windows the second one hears of the first. All of it is kept, or none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse, Response

from omlx.errors import BadRequest, ConfigError, Unconditional
from omlx.models.catalog.catalog import check_alias
from omlx.models.catalog.entry import Status
from omlx.models.package.compatibility import check_draft
from omlx.models.package.package import usable_package
from omlx.models.pool.pool import Pool
from omlx.models.pool.resident import LoadJob
from omlx.models.pool.speculation_config import check_value
from omlx.models.pool.speculation_status import reason_record, speculation_record
from omlx.server.fields import read
from omlx.server.guard import check_exposure
from omlx.settings.configuration import LiveConfiguration
from omlx.settings.layer import Source
from omlx.settings.parse import from_json
from omlx.settings.resolve import Resolution
from omlx.settings.schema import Scope, Settings, table

from ..login.routes import Gate
from .view import Json, applied_view, settings_view

CONFIRMED = frozenset({"trust_remote_code"})
"""Settings that are not turned on by a slip."""


class Change(BaseModel):
    """`confirm` names settings of which the sender knows what they do."""

    model_config = ConfigDict(extra="forbid", strict=True)

    changes: dict[str, Any]
    confirm: Annotated[list[str], Field(max_length=8)] = []


class SettingsRoutes:
    """`rekeyed` is told the API key after each change of it."""

    def __init__(
        self,
        gate: Gate,
        pool: Pool,
        configuration: LiveConfiguration,
        rekeyed: Callable[[str | None], None],
    ) -> None:
        self._gate = gate
        self._pool = pool
        self._live = configuration
        self._rekeyed = rekeyed
        self._bound = configuration.current.resolve().settings.host

    def routes(self) -> APIRouter:
        router = APIRouter(prefix="/admin/api")
        router.add_api_route("/settings", self.show, methods=["GET"])
        router.add_api_route("/settings", self.change, methods=["PATCH"])
        router.add_api_route("/models/{name:path}/settings", self.show_model, methods=["GET"])
        router.add_api_route("/models/{name:path}/settings", self.change_model, methods=["PATCH"])
        return router

    async def show(self, request: Request) -> Response:
        self._gate.session(request)
        return self._answer(await asyncio.to_thread(self.view, None))

    async def show_model(self, request: Request, name: str) -> Response:
        self._gate.session(request)
        return self._answer(await asyncio.to_thread(self.view, self._pool.entry(name).id))

    async def change(self, request: Request) -> Response:
        session = self._gate.session(request)
        asked = await self._keep(request, None)
        if "api_key" in asked.changes:  # and not otherwise: a file that was lost takes no key away
            self._rekeyed(self._resolve(None).settings.api_key)
        waits = self._waiting(await self._pool.reconfigure(), None)
        response = self._answer(await asyncio.to_thread(self.view, None, asked.changes, waits))
        if "api_key" in asked.changes:  # which ended every session, but whoever changed it stays
            self._gate.renew(request, response, by_link=session.by_link)
        return response

    async def change_model(self, request: Request, name: str) -> Response:
        self._gate.session(request)
        model = self._pool.entry(name).id
        asked = await self._keep(request, model)
        waits = self._waiting(await self._pool.reconfigure(), model)
        return self._answer(await asyncio.to_thread(self.view, model, asked.changes, waits))

    def view(
        self, model: str | None, changes: Mapping[str, Any] | None = None, waits: bool = False
    ) -> Json:
        """The settings for all models or for one, as they are told. Reads the files; raises NotFound."""
        scope, own = (Scope.GLOBAL, Source.GLOBAL) if model is None else (Scope.MODEL, Source.MODEL)
        stored = self._live.refresh().stored
        resolution = self._resolve(model)
        view = settings_view(scope, resolution, stored.layer(model), stored.revision(model))
        view["notes"] = [reason_record(note) for note in self._live.current.notes]
        if changes is not None:
            view["applied"] = applied_view(changes, resolution, own, waits=waits)
        if model is not None:
            view["model"] = model
            if self._pool.entry(model).status is Status.USABLE:
                view["speculation"] = speculation_record(self._pool.speculation(model))
        return view

    def inherited(self, model: str) -> Settings:
        """What a model has where nothing is kept for it alone. Reads the files; raises NotFound."""
        return self._live.current.resolve(
            None, usable_package(self._pool.entry(model).path).layer
        ).settings

    async def _keep(self, request: Request, model: str | None) -> Change:
        """Raises BadRequest for what cannot be, naming the setting; Outdated and Unconditional."""
        revision = request.headers.get("if-match")
        asked = read(Change, await request.body())
        if revision is None:
            raise Unconditional("config.unconditional")
        try:
            await asyncio.to_thread(self._check, asked, model)
            await asyncio.to_thread(
                self._live.patch, asked.changes, model, expected=revision.strip('"')
            )
        except ConfigError as error:
            raise BadRequest(error.code, param=error.param, **error.params) from error
        return asked

    def _check(self, asked: Change, model: str | None) -> None:
        """What is wrong with one setting, named; what the store cannot know of them. Raises ConfigError, BadRequest."""
        scope = Scope.GLOBAL if model is None else Scope.MODEL
        for name, raw in asked.changes.items():
            row = table().get(name)
            if row is None:
                raise ConfigError("config.unknown", param=name, name=name)
            if not row.allowed_in(scope):
                raise ConfigError("config.not_stored", param=name, name=name, scope=scope.value)
            if raw is None:
                continue
            try:
                value = from_json(row, raw, name)
                check_value(name, value, name)
                if name == "alias" and model is not None:
                    check_alias(str(value), model, self._pool.registry, self._live.current)
            except ConfigError as error:
                raise ConfigError(error.code, param=name, **error.params) from error
            if name == "draft_model":
                check_draft(
                    str(value),
                    self._pool.entry(model) if model is not None else None,
                    self._pool.registry,
                )
            if name in CONFIRMED and value and name not in asked.confirm:
                raise BadRequest("config.confirm", param=name, name=name)
        if model is None and asked.changes.keys() & {"host", "api_key"}:
            host, key = self._after("host", asked.changes), self._after("api_key", asked.changes)
            for each in (self._bound, str(host)):  # now, and after the next start
                check_exposure(each, None if key is None else str(key))

    def _after(self, name: str, changes: Mapping[str, Any]) -> object:
        """What a setting for all models comes to with these changes."""
        now = self._live.current.resolve()[name]
        if name not in changes or now.source.rank < Source.GLOBAL.rank:
            return now.value
        return table()[name].default if changes[name] is None else changes[name]

    def _resolve(self, model: str | None) -> Resolution:
        if model is None:
            return self._live.current.resolve()
        return self._live.current.resolve(model, usable_package(self._pool.entry(model).path).layer)

    def _waiting(self, changes: list[LoadJob], model: str | None) -> bool:
        """Whether one of the models that are to take up something has requests."""
        ids = [change.entry.id for change in changes if model in (None, change.entry.id)]
        return any(self._pool.status(each).active for each in ids)

    def _answer(self, view: Json) -> Response:
        return JSONResponse(view, headers={"ETag": f'"{view["revision"]}"'})
