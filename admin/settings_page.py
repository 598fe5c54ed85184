"""The settings for all models, one form."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import APIRouter, Request

from .form_view import FieldGroup, form_view
from .pages import Page, Pages
from .settings_routes import SettingsRoutes


@dataclass(frozen=True, slots=True)
class SettingsView:
    revision: str
    groups: Sequence[FieldGroup]


class SettingsPage:
    def __init__(self, pages: Pages, settings: SettingsRoutes) -> None:
        self._pages = pages
        self._settings = settings

    def routes(self) -> APIRouter:
        router = APIRouter()
        self._pages.route(router, "/admin/settings", self.show)
        return router

    async def show(self, request: Request) -> Page:
        told = await asyncio.to_thread(self._settings.view, None)
        return Page("settings/page.html", SettingsView(told["revision"], form_view(told["settings"])), "settings")
