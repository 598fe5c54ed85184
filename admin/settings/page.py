"""Settings: the form of those of all models, and the API.

A PATCH names the revision that it changes (If-Match). The parameter `profile` of the query names a
profile of the model.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from omlx.errors import Unconditional
from omlx.models.pool.pool import Pool
from omlx.server.errors import field_error
from omlx.server.fields import read

from ..login import Gate
from ..web.addresses import SETTINGS
from ..web.pages import Pages, page
from .service import Change, SettingsService
from .view import SettingsView


@dataclass(frozen=True, slots=True)
class SettingsForm:
    settings: SettingsView


@dataclass(frozen=True, slots=True)
class SettingsPage:
    gate: Gate
    pool: Pool
    settings: SettingsService

    def register(self, pages: Pages, api: APIRouter) -> None:
        pages.route(SETTINGS, page("settings/page.html", self._form, "settings"))
        of_model = "/models/{name:path}/settings"
        api.add_api_route("/settings", self.show, methods=["GET"])
        api.add_api_route("/settings", self.change, methods=["PATCH"])
        api.add_api_route(of_model, self.show_model, methods=["GET"])
        api.add_api_route(of_model, self.change_model, methods=["PATCH"])
        api.add_api_route(of_model, self.remove, methods=["DELETE"])

    async def _form(self, request: Request) -> SettingsForm:
        return SettingsForm(await asyncio.to_thread(self.settings.view, None))

    async def show(self, request: Request) -> Response:
        return _answer(await asyncio.to_thread(self.settings.view, None))

    async def show_model(self, request: Request, name: str) -> Response:
        model = self.pool.entry(name).id
        return _answer(await asyncio.to_thread(self.settings.view, model, _profile(request)))

    async def change(self, request: Request) -> Response:
        session = self.gate.session(request)
        view = await self._change(request, None)
        response = _answer(view)
        if "api_key" in (view.applied or ()):  # ended every session; this browser stays logged in
            self.gate.renew(request, response, by_link=session.by_link)
        return response

    async def change_model(self, request: Request, name: str) -> Response:
        return _answer(await self._change(request, self.pool.entry(name).id, _profile(request)))

    async def remove(self, request: Request, name: str) -> Response:
        """Remove a profile of a model."""
        profile = _profile(request)
        if profile is None:
            raise field_error("request.missing", "profile")
        model = self.pool.entry(name).id
        await asyncio.to_thread(self.settings.remove, model, profile)
        return Response(status_code=204)

    async def _change(
        self, request: Request, model: str | None, profile: str | None = None
    ) -> SettingsView:
        revision = request.headers.get("if-match")
        change = read(Change, await request.body())
        if revision is None:
            raise Unconditional("config.unconditional")
        return await self.settings.change(change, model, revision.strip('"'), profile)


def _profile(request: Request) -> str | None:
    return request.query_params.get("profile")


def _answer(view: SettingsView) -> Response:
    return JSONResponse(view.record(), headers={"ETag": f'"{view.revision}"'})
