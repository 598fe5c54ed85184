"""API of trials, below `/admin/api/models/{model}/trial`.

GET  …           what can be tried, the running trial, the last result
POST …/estimate  time and memory of a trial; runs nothing
POST …           begin
GET  …/events    the report as server-sent events until the trial is over
POST …/cancel    stop
POST …/apply     store the recommended or the named configuration; …/undo restores what was stored
POST …/write     declare it in the model's package
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse, Response

from omlx.errors import Conflict
from omlx.measure.planning import MAX_DRAFTS
from omlx.measure.samples import PLAIN, TrialConfiguration
from omlx.measure.texts import WRITTEN, Kind
from omlx.measure.trial import Plan, Trial
from omlx.server.http import sse
from omlx.server.request.fields import read

from .login import Gate
from .settings.view import Json
from .trial_service import TrialService, estimate_record, report_record
from .web.preferences import Strict, language_of

TOKENS: Final = 128
MIN_TOKENS, MAX_TOKENS = 16, 512
EVENT_INTERVAL_S: Final = 0.15
"""Minimum time between two events of a stream."""

STREAM_S: Final = 5.0
"""Duration of an event stream; the browser reconnects. A longer one would delay the shutdown."""

Name = Annotated[str, Field(max_length=400)]


class TrialRequest(BaseModel):
    """Body of a trial: drafts by name, kinds of text, length of an answer in tokens, and the data
    URI of an image for the kind `picture`.
    """

    model_config = ConfigDict(extra="forbid")

    drafts: Annotated[list[Name], Field(max_length=16)] = []
    kinds: Annotated[list[Kind], Field(max_length=16)] = list(WRITTEN)
    tokens: Annotated[int, Field(ge=MIN_TOKENS, le=MAX_TOKENS, strict=True)] = TOKENS
    picture: str = ""


class ConfigurationChoice(Strict):
    """Body that names a configuration of the trial; the recommended one without."""

    setup: Name | None = None


@dataclass(frozen=True, slots=True)
class TrialApi:
    gate: Gate
    service: TrialService

    def register(self, router: APIRouter) -> None:
        trial = "/models/{name:path}/trial"
        router.add_api_route(trial, self.show, methods=["GET"])
        router.add_api_route(trial, self.begin, methods=["POST"])
        router.add_api_route(f"{trial}/events", self.follow, methods=["GET"])
        for action in (self.estimate, self.cancel, self.apply, self.undo, self.write):
            router.add_api_route(f"{trial}/{action.__name__}", action, methods=["POST"])

    async def show(self, request: Request, name: str) -> Response:
        return JSONResponse(await self.service.status(self._id(name), language_of(request)))

    async def estimate(self, request: Request, name: str) -> Response:
        """Estimate time and memory. Loads nothing."""
        plan = await self._plan(request, self._id(name))
        rate = await self.service.plain_rate(plan.model)
        estimate = await self.service.planner.estimate(plan, rate)
        return JSONResponse(estimate_record(estimate, language_of(request)))

    async def begin(self, request: Request, name: str) -> Response:
        """Begin a trial; answers at once."""
        plan = await self._plan(request, self._id(name))
        trial = Trial(plan)
        self.service.measurements.begin(trial)
        return JSONResponse(report_record(trial.report(), language_of(request)), 202)

    async def follow(self, request: Request, name: str) -> Response:
        model = self._id(name)
        trial = self.service.newest(model)
        if trial is None:
            raise Conflict("trial.not_running", model=model)
        return sse.EventStream(self._frames(request, trial), lambda: None)

    async def cancel(self, request: Request, name: str) -> Response:
        """Stop the trial; answers once it has stopped."""
        model = self._id(name)
        await request.body()
        trial = self.service.newest(model)
        if trial is None or trial.state.over:
            raise Conflict("trial.not_running", model=model)
        await self.service.measurements.stop(trial)
        return JSONResponse(report_record(trial.report(), language_of(request)))

    async def apply(self, request: Request, name: str) -> Response:
        """Store a configuration as the model's settings; say when each of them takes effect."""
        model = self._id(name)
        configuration = await self._configuration(request, model)
        applied = await self.service.apply(model, configuration)
        return JSONResponse({"setup": configuration.name, **applied})

    async def undo(self, request: Request, name: str) -> Response:
        model = self._id(name)
        await request.body()
        return JSONResponse(await self.service.undo(model))

    async def write(self, request: Request, name: str) -> Response:
        model = self._id(name)
        configuration = await self._configuration(request, model)
        file, strategy = await self.service.write(model, configuration)
        return JSONResponse({"file": str(file), "name": strategy})

    def _id(self, name: str) -> str:
        """Raises NotFound."""
        return self.service.pool.entry(name).id

    async def _plan(self, request: Request, model: str) -> Plan:
        trial = read(TrialRequest, await request.body() or b"{}")
        return await self.service.planner.plan(
            model, trial.drafts, trial.kinds, trial.tokens, trial.picture
        )

    async def _configuration(self, request: Request, model: str) -> TrialConfiguration:
        choice = read(ConfigurationChoice, await request.body() or b"{}")
        return await self.service.configuration(model, choice.setup)

    async def _frames(self, request: Request, trial: Trial) -> AsyncGenerator[bytes, None]:
        language, begun = language_of(request), time.monotonic()
        yield b"retry: 100\n\n"
        async for _ in trial.follow(EVENT_INTERVAL_S):
            yield sse.data(report_record(trial.report(), language))
            logged_out = not self.gate.logged_in(request)
            if time.monotonic() - begun > STREAM_S or logged_out:
                return


@dataclass(frozen=True, slots=True)
class Bar:
    """Records of a configuration and its cell, and the length of the bar in percent.

    The length is the speed-up, or, while none is known, the throughput.
    """

    setup: Json
    cell: Json
    share: float


@dataclass(frozen=True, slots=True)
class Chart:
    kind: str
    bars: Sequence[Bar]


@dataclass(frozen=True, slots=True)
class OutcomeView:
    """The part of the card that is refreshed: the record of the API, and charts of its reports."""

    status: Json
    running: bool
    trial_charts: Sequence[Chart]
    last_charts: Sequence[Chart]


@dataclass(frozen=True, slots=True)
class TrialCard:
    """`drafts` maps ids of drafts that fit to sizes in bytes; `checked` are chosen first.

    `sees`: the model reads images. Whether the `unchecked` drafts fit is not known yet; `more` are
    not listed.
    """

    drafts: Mapping[str, int]
    checked: Collection[str]
    outcome: OutcomeView
    sees: bool = False
    unchecked: Collection[str] = ()
    more: int = 0


def trial_card(
    status: Json, drafts: Mapping[str, int], likely: Sequence[str], *, sees: bool = False
) -> TrialCard:
    """Check the `likely` drafts, at most `MAX_DRAFTS`, or the first one if there are none."""
    checked = likely[:MAX_DRAFTS] or list(drafts)[:1]
    return TrialCard(drafts, checked, outcome_view(status), sees)


def outcome_view(status: Json) -> OutcomeView:
    """`status` is the record of `TrialService.status`."""
    trial, last = status["trial"], status["last"]
    running = trial is not None and trial["state"] in ("running", "paused")
    return OutcomeView(
        status,
        running,
        trial_charts=charts(trial) if running else (),
        last_charts=charts(last["record"]) if last else (),
    )


def charts(report: Json) -> list[Chart]:
    """Return a chart per kind of text, with a bar per configuration; the best has 100 %."""
    setups = {setup["name"]: setup for setup in report["setups"]}
    shown = []
    for kind in report["kinds"]:
        cells = [cell for cell in report["cells"] if cell["kind"] == kind]
        values = _lengths(cells)
        best = max(values, default=0.0) or 1.0
        bars = [
            Bar(setups[cell["setup"]], cell, round(100 * value / best, 1))
            for cell, value in zip(cells, values, strict=True)
        ]
        shown.append(Chart(kind, bars))
    return shown


def _lengths(cells: Sequence[Json]) -> list[float]:
    """Return each cell's median speed-up, 1 for plain decoding; or all rates if none is known."""
    if not any(cell["speedup"] for cell in cells):
        return [float(cell["rate"]["median"]) if cell["rate"] else 0.0 for cell in cells]
    return [
        float(bool(cell["rate"]))
        if cell["setup"] == PLAIN.name
        else float(cell["speedup"]["median"] if cell["speedup"] else 0)
        for cell in cells
    ]
