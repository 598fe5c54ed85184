"""The page of requests: active ones with a button that stops them, and the latest ended ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fastapi import Request

from omlx.receipts.verifier import Verifier

from ..addresses import ACTIVITY, PARTS
from ..pages import Page, Pages
from .request_views import AnswerView, LoadingView, RequestView
from .requests import Requests

MAX_ANSWERS: Final = 200
FIRST_ANSWERS: Final = 20
"""Those in the page itself, which is usable sooner; its part that is refreshed has all."""


@dataclass(frozen=True, slots=True)
class ActiveView:
    requests: Sequence[RequestView]
    loading: Sequence[LoadingView]


@dataclass(frozen=True, slots=True)
class EndedView:
    """`kept` are the ids of those answers that have a receipt and can be verified."""

    answers: Sequence[AnswerView]
    kept: frozenset[str]


@dataclass(frozen=True, slots=True)
class ActivityView:
    """`ended` has at most `first_answers`; its part has more."""

    active: ActiveView
    ended: EndedView
    first_answers: int = FIRST_ANSWERS


@dataclass(frozen=True, slots=True)
class ActivityPage:
    requests: Requests
    verifier: Verifier

    def register(self, pages: Pages) -> None:
        pages.route(ACTIVITY, self.show)
        pages.part(f"{PARTS}/activity/active", self.show_active)
        pages.part(f"{PARTS}/activity/ended", self.show_ended)

    async def show(self, request: Request) -> Page:
        view = ActivityView(self._active(), await self._ended(FIRST_ANSWERS))
        return Page("activity/page.html", view, "activity")

    async def show_active(self, request: Request) -> Page:
        return Page("activity/active_part.html", self._active())

    async def show_ended(self, request: Request) -> Page:
        return Page("activity/ended_part.html", await self._ended(MAX_ANSWERS))

    def _active(self) -> ActiveView:
        return ActiveView(self.requests.active(), self.requests.loading())

    async def _ended(self, count: int) -> EndedView:
        answers = self.requests.latest(count)
        kept = await self.verifier.kept(answer.id for answer in answers if answer.id is not None)
        return EndedView(answers, kept)
