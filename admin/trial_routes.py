"""Try a draft: what it will take, beginning, following, stopping; and taking up what came of it.

GET  …/trial            what can be tried, what runs, what the last one found and whether that still counts
POST …/trial/estimate   time and memory; nothing runs
POST …/trial            begin
GET  …/trial/events     the report again and again, as server-sent events, until the trial is over
POST …/trial/cancel     stop
POST …/trial/apply      store what is recommended, or the setup that is named; …/undo takes it back
POST …/trial/write      declare it in the model's package
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final

from fastapi import APIRouter, FastAPI, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse, Response

from omlx.errors import BadRequest, Conflict
from omlx.models.pool import Pool
from omlx.server import sse
from omlx.trial.answering import Answering
from omlx.trial.kept import Results
from omlx.trial.planning import MOST_DRAFTS, Planner
from omlx.trial.report import report
from omlx.trial.setups import PLAIN, Setup, find_setup
from omlx.trial.texts import WRITTEN, Kind
from omlx.trial.trial import Plan, Runner, State, Trial
from omlx.trial.trials import Trials

from .applying import Applying
from .login import Gate, parse
from .settings_view import Json
from .trial_view import estimate_view, kept_view, report_view

TOKENS: Final = 128
LEAST_TOKENS, MOST_TOKENS = 16, 512
EVERY_S: Final = 0.15
"""How often the page hears of progress, at most."""

Name = Annotated[str, Field(max_length=400)]


class Wanted(BaseModel):
    """What is to be tried: drafts by name, kinds of text, how long an answer may be, in tokens."""

    model_config = ConfigDict(extra="forbid")

    drafts: Annotated[list[Name], Field(max_length=16)] = []
    kinds: Annotated[list[Kind], Field(max_length=16)] = list(WRITTEN)
    tokens: Annotated[int, Field(ge=LEAST_TOKENS, le=MOST_TOKENS, strict=True)] = TOKENS


class Chosen(BaseModel):
    """Which of the setups that were tried; the recommended one unless it is said."""

    model_config = ConfigDict(extra="forbid", strict=True)

    setup: Name | None = None


class TrialRoutes:
    def __init__(self, gate: Gate, app: FastAPI, pool: Pool, applying: Applying, home: Path) -> None:
        self._gate = gate
        self._app = app
        self._pool = pool
        self._applying = applying
        self._home = home

    def routes(self) -> APIRouter:
        router = APIRouter(prefix="/admin/api/models/{name:path}/trial")
        router.add_api_route("", self.show, methods=["GET"])
        router.add_api_route("", self.begin, methods=["POST"])
        router.add_api_route("/events", self.follow, methods=["GET"])
        for action in (self.estimate, self.cancel, self.apply, self.undo, self.write):
            router.add_api_route(f"/{action.__name__}", action, methods=["POST"])
        return router

    @cached_property
    def trials(self) -> Trials:
        runner = Runner(Answering(self._app.state.engine, self._pool), self._pool, self._app.state.generations)
        return Trials(self._pool, runner, Results(self._home))

    @cached_property
    def planner(self) -> Planner:
        return Planner(self._app.state.engine, self._pool, self._app.state.generations)

    async def show(self, request: Request, name: str) -> Response:
        self._gate.session(request)
        return JSONResponse(await self.view(self._pool.known(name).id))

    async def estimate(self, request: Request, name: str) -> Response:
        """Nothing is loaded for it."""
        self._gate.session(request)
        plan = await self._plan(request, name)
        return JSONResponse(estimate_view(await self.planner.estimate(plan, await self._rate(plan.model))))

    async def begin(self, request: Request, name: str) -> Response:
        """Answers at once; what comes of it is followed."""
        self._gate.session(request)
        trial = self.trials.begin(await self._plan(request, name))
        return JSONResponse(self._told(trial), 202)

    async def follow(self, request: Request, name: str) -> Response:
        self._gate.session(request)
        trial = self.trials.of(self._pool.known(name).id)
        if trial is None:
            raise Conflict("trial.not_running", model=name)
        return sse.EventStream(self._frames(request, trial), lambda: None)

    async def cancel(self, request: Request, name: str) -> Response:
        """Answers when it has stopped."""
        self._gate.session(request)
        await request.body()
        return JSONResponse(self._told(await self.trials.cancel(self._pool.known(name).id)))

    async def apply(self, request: Request, name: str) -> Response:
        self._gate.session(request)
        model = self._pool.known(name).id
        takes = await self._applying.apply(model, await self._chosen(request, model))
        return JSONResponse({"takes": takes, **await self.view(model)})

    async def undo(self, request: Request, name: str) -> Response:
        self._gate.session(request)
        await request.body()
        model = self._pool.known(name).id
        takes = await self._applying.undo(model)
        return JSONResponse({"takes": takes, **await self.view(model)})

    async def write(self, request: Request, name: str) -> Response:
        self._gate.session(request)
        model = self._pool.known(name).id
        written = await self._applying.write(model, await self._chosen(request, model))
        return JSONResponse({"written": written, **await self.view(model)})

    async def view(self, model: str) -> Json:
        """`trial` is the newest one of this run, over or not; `last` the newest that came to its end, of earlier runs
        too; `results` what was last found of each draft. `running` names the model that is being tried, whichever."""
        trials, history, applied = self.trials, await self.trials.history(model), self._applying.of(model)
        trial, running = trials.of(model), trials.running
        last = history.report
        results = {
            draft: kept_view(kept, await trials.conditions((model, draft))) for draft, kept in history.drafts.items()
        }
        tried = () if last is None else (model, *last.record["drafts"])
        return {
            "model": model,
            "running": None if running is None else running.plan.model,
            "kinds": [kind.value for kind in WRITTEN],
            "conversation": self.planner.has_conversation(model),
            "tokens": {"default": TOKENS, "low": LEAST_TOKENS, "high": MOST_TOKENS},
            "most_drafts": MOST_DRAFTS,
            "trial": None if trial is None else self._told(trial),
            "last": None if last is None else kept_view(last, await trials.conditions(tried)),
            "results": results,
            "applied": None if applied is None else applied.setup.name,
        }

    async def _plan(self, request: Request, name: str) -> Plan:
        asked = parse(Wanted, await request.body() or b"{}")
        return await self.planner.plan(name, asked.drafts, asked.kinds, asked.tokens)

    async def _rate(self, model: str) -> float | None:
        """What plain decoding did in the last trial, if that still counts."""
        last = (await self.trials.history(model)).report
        if last is None or last.stale(await self.trials.conditions((model,))):
            return None
        rates = [
            cell["rate"]["median"] for cell in last.record["cells"] if cell["setup"] == PLAIN.name and cell["rate"]
        ]
        return sum(rates) / len(rates) if rates else None

    async def _chosen(self, request: Request, model: str) -> Setup:
        """Raises Conflict where there is nothing to take up, BadRequest for what was not tried."""
        asked = parse(Chosen, await request.body() or b"{}")
        found = await self._result(model)
        if found is None:
            raise Conflict("trial.no_result", model=model)
        recommended = found["verdict"]["setup"] if found["verdict"] is not None else None
        name = asked.setup or (recommended["name"] if recommended is not None else None)
        if name is None:
            raise Conflict("trial.no_recommendation", model=model)
        setup = find_setup(name, found["drafts"])
        if setup is None:
            raise BadRequest("trial.unknown_setup", param="setup", setup=name)
        return setup

    async def _result(self, model: str) -> Mapping[str, Any] | None:
        """The newest trial that came to its end."""
        trial = self.trials.of(model)
        if trial is not None and trial.state is State.DONE:
            return report(trial)
        last = (await self.trials.history(model)).report
        return None if last is None else last.record

    def _told(self, trial: Trial) -> Json:
        return report_view(report(trial))

    async def _frames(self, request: Request, trial: Trial) -> AsyncGenerator[bytes, None]:
        async for _ in trial.follow(EVERY_S):
            if self._gate.find(request) is None:  # logged out meanwhile
                return
            yield sse.data(self._told(trial))
