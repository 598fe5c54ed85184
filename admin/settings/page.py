"""Settings: the form for all models, the page of a profile, and the API.

A PATCH gives the revision to change (If-Match). The query parameter `profile` selects a profile of
the model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from omlx.errors import Unconditional
from omlx.models.pool.pool import Pool
from omlx.server.http.errors import field_error
from omlx.server.request.fields import read

from ..login import Gate
from ..web.addresses import PROFILES, SETTINGS, model_path, profile_path
from ..web.pages import Pages, page
from ..web.preferences import form_data
from .service import Change, SettingsService
from .view import SettingsView, SettingView


@dataclass(frozen=True, slots=True)
class SettingsForm:
    settings: SettingsView


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """A profile in a model's list, with the settings stored in the profile."""

    id: str
    address: str
    settings: Sequence[SettingView]


@dataclass(frozen=True, slots=True)
class ProfileView:
    """A profile of the model `model` (id); a new profile has no set `settings`."""

    model: str
    name: str
    settings: SettingsView

    @property
    def id(self) -> str:
        return f"{self.model}:{self.name}"

    @property
    def is_new(self) -> bool:
        return not any(setting.is_set for setting in self.settings.settings.values())

    @property
    def path(self) -> str:
        """Path of the profile's settings below the API."""
        return f"/models/{self.model}/settings?{urlencode({'profile': self.name})}"

    @property
    def model_page(self) -> str:
        return model_path(self.model)


@dataclass(frozen=True, slots=True)
class SettingsPage:
    gate: Gate
    pool: Pool
    settings: SettingsService

    def register(self, pages: Pages, api: APIRouter) -> None:
        pages.route(SETTINGS, page("settings/page.html", self._form, "settings"))
        profile = f"{PROFILES}/{{name:path}}"
        pages.route(profile, page("models/profile_page.html", self._profile_form, "models"))
        pages.form(profile, self.open)
        of_model = "/models/{name:path}/settings"
        api.add_api_route("/settings", self.show, methods=["GET"])
        api.add_api_route("/settings", self.change, methods=["PATCH"])
        api.add_api_route(of_model, self.show_model, methods=["GET"])
        api.add_api_route(of_model, self.change_model, methods=["PATCH"])
        api.add_api_route(of_model, self.remove, methods=["DELETE"])

    async def _form(self, request: Request) -> SettingsForm:
        return SettingsForm(await asyncio.to_thread(self.settings.view, None))

    async def _profile_form(self, request: Request) -> ProfileView:
        model = self.pool.entry(request.path_params["name"]).id
        name = request.query_params.get("profile", "")
        return ProfileView(model, name, await asyncio.to_thread(self.settings.view, model, name))

    async def open(self, request: Request) -> Response:
        """Redirect to the profile entered in the form, else to the shown profile."""
        shown = request.query_params.get("profile", "")
        name = (await form_data(request)).get("profile", shown)
        return RedirectResponse(profile_path(request.path_params["name"], name), 303)

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


def profile_rows(settings: SettingsService, model: str) -> Sequence[ProfileRow]:
    return [
        ProfileRow(profile.id, profile_path(model, profile.name), views)
        for profile, views in settings.profiles(model)
    ]
