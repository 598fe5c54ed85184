"""The page of statistics, and its API."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from omlx.server.fields import Body, read_query
from omlx.telemetry.usage_history import KEPT_DAYS, UsageHistory

from ..addresses import PARTS, STATISTICS
from ..pages import Page, Pages
from .statistics_view import StatisticsView, UsageLine, statistics_view


class StatisticsQuery(Body):
    """How many days, today included."""

    days: Annotated[int, Field(ge=1, le=KEPT_DAYS)] = 30


@dataclass(frozen=True, slots=True)
class StatisticsPage:
    history: UsageHistory

    def register(self, pages: Pages, api: APIRouter) -> None:
        pages.route(STATISTICS, self.show)
        pages.part(f"{PARTS}/activity/statistics", self.show_part)
        api.add_api_route("/statistics", self.record, methods=["GET"])

    async def show(self, request: Request) -> Page:
        return Page("activity/statistics_page.html", await self._view(request), "activity")

    async def show_part(self, request: Request) -> Page:
        return Page("activity/statistics.html", await self._view(request))

    async def record(self, request: Request) -> Response:
        view = await self._view(request)
        record = {
            "days": view.days,
            "total": _record(view.total),
            "by_day": _records(view.by_day),
            "by_model": _records(view.by_model),
            "by_key": _records(view.by_key),
        }
        return JSONResponse(record)

    async def _view(self, request: Request) -> StatisticsView:
        days = read_query(StatisticsQuery, request.query_params).days
        sums = await asyncio.to_thread(self.history.sums, days)
        return statistics_view(sums, days, date.today())


def _record(line: UsageLine) -> dict[str, Any]:
    return {**asdict(line.usage), "prefix_saved_s": line.prefix_saved_s}


def _records(lines: Sequence[UsageLine]) -> list[dict[str, Any]]:
    return [{"name": line.name, **_record(line)} for line in lines]
