"""The page of one model: gathers what is known of it and of the models that could draft for it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from fastapi import APIRouter, Request

from omlx.errors import Reason
from omlx.models.catalog.entry import ModelEntry, Status
from omlx.models.catalog.reference import find_draft
from omlx.models.package.package import DraftModel, usable_package

from ..pages import PARTS, Page, Pages, language_of
from ..settings.form_view import form_view
from ..settings.routes import SettingsRoutes
from ..trial.trial_service import Trying
from ..trial.try_view import tried_view, try_view
from .drafts_view import DraftsView, Tried, drafts_view
from .fitting import Fitting
from .model_snapshot import Standing, Standings
from .model_view import ModelView
from .page import SECTION
from .prefixes_view import prefixes_view
from .speculation_view import OWN, speculation_view
from .view import Memory, model_row


class ModelPage:
    def __init__(
        self, pages: Pages, standings: Standings, settings: SettingsRoutes, trying: Trying
    ) -> None:
        self._pages = pages
        self._trying = trying
        self._standings = standings
        self._settings = settings
        self._fitting = Fitting()

    def routes(self) -> APIRouter:
        router = APIRouter()
        self._pages.route(router, "/admin/models/{name:path}", self.show)
        self._pages.route(router, f"{PARTS}/model/{{name:path}}", self.show_status)
        self._pages.route(router, f"{PARTS}/prefixes/{{name:path}}", self.show_prefixes)
        return router

    async def show(self, request: Request) -> Page:
        standing = await self._standings.of(request.path_params["name"])
        return Page("model/page.html", await self._view(standing, language_of(request)), SECTION)

    async def show_status(self, request: Request) -> Page:
        standing = await self._standings.of(request.path_params["name"])
        return Page(
            "model/status.html",
            ModelView(model_row(standing, self._standings.pool.default), "", ()),
        )

    async def show_prefixes(self, request: Request) -> Page:
        return Page(
            "model/prefixes_kept.html",
            prefixes_view(await self._standings.of(request.path_params["name"])),
        )

    async def _view(self, standing: Standing, language: str) -> ModelView:
        entry, configured = standing.entry, standing.speculative
        row = model_row(standing, self._standings.pool.default)
        told = await asyncio.to_thread(self._settings.view, entry.id)
        settings, revision = told["settings"], told["revision"]
        if configured is None:
            return ModelView(row, revision, form_view(settings, without=OWN), reason=entry.reason)
        inherited = await asyncio.to_thread(self._settings.inherited, entry.id)
        told = await self._trying.view(entry.id, language)
        drafts = await self._drafts(standing, tried_view(told))
        speculation = speculation_view(configured, settings, inherited, drafts)
        trial = try_view(told, drafts.fit)
        advanced = form_view(settings, without=OWN)
        return ModelView(row, revision, advanced, speculation, trial, prefixes_view(standing))

    async def _drafts(self, standing: Standing, tried: Mapping[str, Tried]) -> DraftsView:
        pool, entry, configured = self._standings.pool, standing.entry, standing.speculative
        assert configured is not None
        others = [
            each
            for each in pool.registry.entries
            if each.id != entry.id and each.status is not Status.SHADOWED
        ]
        verdicts = await self._fitting.of(entry, others)
        drafts = configured.strategy.off or configured.strategy.step("draft") is not None
        named = configured.settings.draft_model if drafts else None
        found = find_draft(named, pool.registry) if named is not None else None
        return drafts_view(
            entry,
            others,
            verdicts,
            standing.recent,
            Memory(pool.limit_bytes, pool.used_bytes),
            here={
                name
                for served in pool.loaded
                for name in (served.id, served.draft)
                if name is not None
            },
            chosen=found.id if isinstance(found, ModelEntry) else None,
            declared=await asyncio.to_thread(self._declared, entry),
            missing=found if isinstance(found, Reason) else None,
            tried=tried,
        )

    def _declared(self, entry: ModelEntry) -> str | None:
        """The draft that the model's package declares, if it is here."""
        package = usable_package(entry.path)
        if not isinstance(package.declared, DraftModel):
            return None
        found = find_draft(str(package.declared.draft), self._standings.pool.registry)
        return found.id if isinstance(found, ModelEntry) else None
