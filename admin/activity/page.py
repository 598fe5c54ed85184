"""The page of requests: active ones with a button that stops them, and the latest ended ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fastapi import Request

from ..addresses import ACTIVITY, PARTS
from ..pages import Page, Pages
from .request_views import AnswerView, LoadingView, RequestView
from .requests import Requests

MAX_ANSWERS: Final = 200


@dataclass(frozen=True, slots=True)
class ActiveView:
    requests: Sequence[RequestView]
    loading: Sequence[LoadingView]


@dataclass(frozen=True, slots=True)
class EndedView:
    answers: Sequence[AnswerView]


@dataclass(frozen=True, slots=True)
class ActivityView:
    active: ActiveView
    ended: EndedView


@dataclass(frozen=True, slots=True)
class ActivityPage:
    requests: Requests

    def register(self, pages: Pages) -> None:
        pages.route(ACTIVITY, self.show)
        pages.part(f"{PARTS}/activity/active", self.show_active)
        pages.part(f"{PARTS}/activity/ended", self.show_ended)

    async def show(self, request: Request) -> Page:
        view = ActivityView(self._active(), self._ended())
        return Page("activity/page.html", view, "activity")

    async def show_active(self, request: Request) -> Page:
        return Page("activity/active_part.html", self._active())

    async def show_ended(self, request: Request) -> Page:
        return Page("activity/ended_part.html", self._ended())

    def _active(self) -> ActiveView:
        return ActiveView(self.requests.active(), self.requests.loading())

    def _ended(self) -> EndedView:
        return EndedView(self.requests.latest(MAX_ANSWERS))
