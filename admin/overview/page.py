"""The first page: live figures, latest requests, models in memory, the server's addresses.

A machine without models of its own is offered some.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from fastapi import Request

from omlx.catalog import data_dir
from omlx.models.hub.downloads import Downloads
from omlx.models.pool.resident import State
from omlx.trial.trials import Trials

from ..activity.request_views import AnswerView
from ..addresses import HOME, PARTS
from ..download.first import FirstView, first_view
from ..models.list_page import ModelRow, model_row
from ..models.model_snapshot import ModelSnapshot, ModelSnapshots, suggested
from ..pages import Page, Pages
from .api import LiveFigures
from .live import Live, StepView, TrialView, minutes, trial_view

MAX_ANSWERS: Final = 50
"""Rows of the table of latest requests."""

FIRST_ANSWERS: Final = 10
"""Those in the page itself, which is usable sooner; its part that is refreshed has all."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """The first steps. `model` is the one to begin with, None if there is none.

    `alone`: there is nothing else to show yet.
    """

    model: str | None
    loading: bool = False
    alone: bool = True


@dataclass(frozen=True, slots=True)
class OverviewView:
    """`address` is the server's in the browser, `trial` the newest of this run.

    `has_charts`: the chart library is installed. `first` is None in the part that moves.
    """

    live: Live
    trial: TrialView | None
    welcome: Welcome | None
    resident: Sequence[ModelRow]
    minutes: Sequence[StepView]
    answers: Sequence[AnswerView]
    address: str
    has_charts: bool
    first: FirstView | None = None


@dataclass(frozen=True, slots=True)
class OverviewPage:
    figures: LiveFigures
    snapshots: ModelSnapshots
    trials: Trials
    downloads: Downloads

    def register(self, pages: Pages) -> None:
        pages.route(HOME, self.show)
        pages.part(f"{PARTS}/overview", self.show_live)
        pages.part(f"{PARTS}/overview/first", self.show_first)

    async def show(self, request: Request) -> Page:
        first = await first_view(self.downloads, self.snapshots.pool)
        view = replace(await self._view(request, FIRST_ANSWERS), first=first)
        return Page("overview/page.html", view, "overview")

    async def show_live(self, request: Request) -> Page:
        return Page("overview/live.html", await self._view(request, MAX_ANSWERS))

    async def show_first(self, request: Request) -> Page:
        return Page("overview/first.html", await first_view(self.downloads, self.snapshots.pool))

    async def _view(self, request: Request, answers: int) -> OverviewView:
        pool, resident = self.snapshots.pool, await self.snapshots.resident()
        # Nothing is awaited from here on: figures, tables and charts are of one moment.
        live, latest = self.figures.now(), self.figures.requests.latest(answers)
        models = [self.snapshots.default, *(snapshot.entry.id for snapshot in resident)]
        model = next(filter(None, models), None) or suggested(pool.models, live.limit_bytes)
        trial = self.trials.newest
        return OverviewView(
            live=live,
            trial=None if trial is None else trial_view(trial),
            welcome=welcome(live, resident, model, has_ended=bool(latest)),
            resident=[
                model_row(with_active(snapshot, live), self.snapshots.default)
                for snapshot in resident
            ],
            minutes=minutes(live.steps),
            answers=latest,
            address=str(request.base_url).rstrip("/"),
            has_charts=(data_dir("static") / "vendor" / "uplot").is_dir(),
        )


def with_active(snapshot: ModelSnapshot, live: Live) -> ModelSnapshot:
    """Count the requests that the page lists: a lease begins earlier and ends later than these."""
    active = sum(request.model == snapshot.entry.id for request in live.requests)
    return replace(snapshot, status=replace(snapshot.status, active=active))


def welcome(
    live: Live, resident: Sequence[ModelSnapshot], model: str | None, *, has_ended: bool = False
) -> Welcome | None:
    """Return None once a model is in memory or a request was answered.

    `has_ended`: a request has ended, whatever its outcome.
    """
    loaded = [model for model in resident if model.status.state is not State.LOADING]
    if live.prompt or loaded:
        return None
    alone = not (live.loading or live.waiting or has_ended)
    return Welcome(model, loading=bool(resident), alone=alone)
