"""Page of the settings of all models: one form."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from fastapi import Request

from ..addresses import SETTINGS
from ..pages import Page, Pages
from .service import SettingsService
from .view import SettingsView


@dataclass(frozen=True, slots=True)
class SettingsForm:
    settings: SettingsView


@dataclass(frozen=True, slots=True)
class SettingsPage:
    settings: SettingsService

    def register(self, pages: Pages) -> None:
        pages.route(SETTINGS, self.show)

    async def show(self, request: Request) -> Page:
        view = await asyncio.to_thread(self.settings.view, None)
        return Page("settings/page.html", SettingsForm(view), "settings")
