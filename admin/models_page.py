"""The pages of models: all of them, and one."""

from __future__ import annotations

from fastapi import APIRouter, Request

from .models_view import Memory, model_row, models_view
from .pages import PARTS, Page, Pages
from .standing import Standings

SECTION = "models"


class ModelsPage:
    def __init__(self, pages: Pages, standings: Standings) -> None:
        self._pages = pages
        self._standings = standings

    def routes(self) -> APIRouter:
        router = APIRouter()
        self._pages.route(router, "/admin/models", self.show)
        self._pages.route(router, f"{PARTS}/models", self.show_list)
        self._pages.route(router, f"{PARTS}/chip/{{name:path}}", self.show_chip)
        return router

    async def show(self, request: Request) -> Page:
        return Page("models/page.html", await self._view(), SECTION)

    async def show_list(self, request: Request) -> Page:
        return Page("models/list.html", await self._view())

    async def show_chip(self, request: Request) -> Page:
        standing = await self._standings.of(request.path_params["name"])
        return Page("chip/part.html", model_row(standing, None))

    async def _view(self) -> object:
        pool = self._standings.pool
        memory = Memory(pool.limit_bytes, pool.used_bytes)
        return models_view(await self._standings.all(), memory, pool.default)
