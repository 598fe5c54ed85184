"""The part of a model's page that shows its trial: what runs now, what the last one found."""

from __future__ import annotations

from fastapi import APIRouter, Request

from ..pages import PARTS, Page, Pages, language_of
from .trial_service import Trying
from .try_view import outcome_view


class TryPart:
    def __init__(self, pages: Pages, trying: Trying) -> None:
        self._pages = pages
        self._trying = trying

    def routes(self) -> APIRouter:
        router = APIRouter()
        self._pages.route(router, f"{PARTS}/trial/{{name:path}}", self.show)
        return router

    async def show(self, request: Request) -> Page:
        model = self._trying.pool.entry(request.path_params["name"]).id
        return Page(
            "model/trial.html", outcome_view(await self._trying.view(model, language_of(request)))
        )
