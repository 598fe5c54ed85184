"""The page Models."""

from __future__ import annotations

from fastapi import APIRouter, Request

from .pages import Page, Pages


class ModelsPage:
    def __init__(self, pages: Pages) -> None:
        self._pages = pages

    def routes(self) -> APIRouter:
        router = APIRouter()
        self._pages.route(router, "/admin/models", self.show)
        return router

    async def show(self, request: Request) -> Page:
        return Page("models/page.html", section="models")
