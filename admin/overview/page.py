"""The page Overview, and the parts of it that keep up."""

from __future__ import annotations

from fastapi import APIRouter, Request

from omlx.catalog import data_dir, sentence
from omlx.server.guard import ApiKey

from ..models.model_snapshot import Standings
from ..pages import PARTS, Page, Pages, Show, language_of
from .live import LiveData
from .view import OverviewView, Server, overview_view


class OverviewPage:
    def __init__(self, pages: Pages, live: LiveData, standings: Standings, key: ApiKey) -> None:
        self._pages = pages
        self._live = live
        self._standings = standings
        self._key = key

    def routes(self) -> APIRouter:
        router = APIRouter()
        self._pages.route(router, "/admin", self.show)
        for part in ("figures", "minutes", "tables"):
            self._pages.route(router, f"{PARTS}/overview/{part}", self._part(part))
        return router

    async def show(self, request: Request) -> Page:
        return Page("overview/page.html", await self._view(request), "overview")

    def _part(self, name: str) -> Show:
        async def show(request: Request) -> Page:
            return Page(f"overview/{name}.html", await self._view(request))

        return show

    async def _view(self, request: Request) -> OverviewView:
        pool = self._standings.pool
        server = Server(
            address=str(request.base_url).rstrip("/"),
            prompt=sentence("cli.serve.prompt", {}, language_of(request)),
            with_key=self._key.value is not None,
            has_charts=(data_dir("static") / "vendor" / "uplot").is_dir(),
        )
        return overview_view(
            self._live.now(), await self._standings.here(), pool.models, pool.default, server
        )
