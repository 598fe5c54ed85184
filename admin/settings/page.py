"""Page of the settings of all models: one form."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import Request

from omlx.models.pool.pool import Pool

from ..addresses import SETTINGS
from ..pages import Page, Pages
from .service import SettingsService
from .view import SettingsView


@dataclass(frozen=True, slots=True)
class SettingsForm:
    """`models` are the ids that complete a setting that names a model."""

    settings: SettingsView
    models: Sequence[str]


@dataclass(frozen=True, slots=True)
class SettingsPage:
    settings: SettingsService
    pool: Pool

    def register(self, pages: Pages) -> None:
        pages.route(SETTINGS, self.show)

    async def show(self, request: Request) -> Page:
        view = await asyncio.to_thread(self.settings.view, None)
        models = [entry.id for entry in self.pool.models]
        return Page("settings/page.html", SettingsForm(view, models), "settings")
