"""The settings for all models, one form."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import APIRouter, Request

from omlx.models.pool.pool import Pool

from ..pages import Page, Pages
from .form_view import FieldGroup, form_view
from .routes import SettingsRoutes
from .view import Json


@dataclass(frozen=True, slots=True)
class SettingsView:
    """`notes` say which files did not count, and why; `models` are names to choose from where a setting names one."""

    revision: str
    notes: Sequence[Json]
    groups: Sequence[FieldGroup]
    models: Sequence[str]


class SettingsPage:
    def __init__(self, pages: Pages, settings: SettingsRoutes, pool: Pool) -> None:
        self._pages = pages
        self._settings = settings
        self._pool = pool

    def routes(self) -> APIRouter:
        router = APIRouter()
        self._pages.route(router, "/admin/settings", self.show)
        return router

    async def show(self, request: Request) -> Page:
        told = await asyncio.to_thread(self._settings.view, None)
        models = [entry.id for entry in self._pool.models]
        view = SettingsView(told["revision"], told["notes"], form_view(told["settings"]), models)
        return Page("settings/page.html", view, "settings")
