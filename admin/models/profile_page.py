"""Page of a profile of a model: its settings, or those that a new one would begin with."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from fastapi import Request
from starlette.responses import RedirectResponse, Response

from omlx.models.pool.pool import Pool

from ..settings.service import SettingsService
from ..settings.view import SettingsView, SettingView
from ..web.addresses import PROFILES, model_path, profile_path
from ..web.pages import Pages, page
from ..web.preferences import form_data
from .list_page import SECTION


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """A profile in the list of its model: `settings` are those that it has."""

    id: str
    address: str
    settings: Sequence[SettingView]


@dataclass(frozen=True, slots=True)
class ProfileView:
    """A profile of the model with the id `model`, which has none of its `settings` yet if it is
    new.
    """

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
        """The address of its settings below the API."""
        return f"/models/{self.model}/settings?{urlencode({'profile': self.name})}"

    @property
    def model_page(self) -> str:
        return model_path(self.model)


@dataclass(frozen=True, slots=True)
class ProfilePage:
    pool: Pool
    settings: SettingsService

    def register(self, pages: Pages) -> None:
        pages.route(
            f"{PROFILES}/{{name:path}}", page("models/profile_page.html", self._view, SECTION)
        )
        pages.form(f"{PROFILES}/{{name:path}}", self.open)

    async def open(self, request: Request) -> Response:
        """Go to the page of the profile that was typed, or of the one that is shown."""
        shown = request.query_params.get("profile", "")
        name = (await form_data(request)).get("profile", shown)
        return RedirectResponse(profile_path(request.path_params["name"], name), 303)

    async def _view(self, request: Request) -> ProfileView:
        model = self.pool.entry(request.path_params["name"]).id
        name = request.query_params.get("profile", "")
        settings = await asyncio.to_thread(self.settings.view, model, name)
        return ProfileView(model, name, settings)


def profile_rows(settings: SettingsService, model: str) -> Sequence[ProfileRow]:
    return [
        ProfileRow(profile.id, profile_path(model, profile.name), views)
        for profile, views in settings.profiles(model)
    ]
