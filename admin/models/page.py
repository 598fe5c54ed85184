"""The page of all models."""

from __future__ import annotations

from fastapi import APIRouter, Request

from ..pages import PARTS, Page, Pages
from .model_snapshot import Standings
from .view import Memory, ModelsView, models_view

SECTION = "models"


class ModelsPage:
    def __init__(self, pages: Pages, standings: Standings) -> None:
        self._pages = pages
        self._standings = standings

    def routes(self) -> APIRouter:
        router = APIRouter()
        self._pages.route(router, "/admin/models", self.show)
        self._pages.route(router, f"{PARTS}/models", self.show_list)
        return router

    async def show(self, request: Request) -> Page:
        return Page("models/page.html", await self._view(), SECTION)

    async def show_list(self, request: Request) -> Page:
        return Page("models/list.html", await self._view())

    async def _view(self) -> ModelsView:
        pool = self._standings.pool
        memory = Memory(pool.limit_bytes, pool.used_bytes)
        return models_view(await self._standings.all(), memory, pool.default)
