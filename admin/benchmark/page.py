"""The benchmark page: choose a model, run, watch, compare, export."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlencode

from fastapi import Request

from ..addresses import BENCHMARK, PARTS
from ..models.list_page import SECTION
from ..models.model_snapshot import suggested
from ..pages import Page, Pages
from .service import BenchmarkService
from .view import BenchmarkView, OutcomeView


@dataclass(frozen=True, slots=True)
class BenchmarkPage:
    service: BenchmarkService

    def register(self, pages: Pages) -> None:
        pages.route(BENCHMARK, self.show)
        pages.part(f"{PARTS}/benchmark/{{name:path}}", self.show_outcome)

    async def show(self, request: Request) -> Page:
        """Raises NotFound for an unknown model."""
        pool = self.service.pool
        model = request.query_params.get("model") or self._first()
        outcome = OutcomeView("")
        if model is not None:
            outcome = await self._outcome(request, pool.entry(model).id)
        chosen = {name: request.query_params.get(name) for name in ("run", "with")}
        query = urlencode({name: key for name, key in chosen.items() if key is not None})
        view = BenchmarkView([entry.id for entry in pool.models], outcome, query)
        return Page("benchmark/page.html", view, SECTION)

    async def show_outcome(self, request: Request) -> Page:
        model = self.service.pool.entry(request.path_params["name"]).id
        return Page("benchmark/outcome.html", await self._outcome(request, model))

    async def _outcome(self, request: Request, model: str) -> OutcomeView:
        query = request.query_params
        return await self.service.outcome(model, query.get("run"), query.get("with"))

    def _first(self) -> str | None:
        """The model that runs a benchmark, else one in memory, else the suggested one."""
        pool, running = self.service.pool, self.service.benchmarks.running
        if running is not None:
            return running.model
        if pool.last_used is not None:
            return pool.last_used.id
        return suggested(pool.models, pool.limit_bytes)
