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

import time
from collections.abc import AsyncGenerator
from typing import Annotated, Final

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse, Response

from omlx.errors import Conflict
from omlx.server import sse
from omlx.server.fields import read
from omlx.trial.texts import WRITTEN, Kind
from omlx.trial.trial import Plan, Trial

from ..login.routes import Gate
from ..pages import language_of
from .trial_service import Trying
from .view import estimate_view

TOKENS: Final = 128
LEAST_TOKENS, MOST_TOKENS = 16, 512
EVERY_S: Final = 0.15
"""How often the page hears of progress, at most."""

FOLLOWED_S: Final = 5.0
"""A stream ends after so long, trial or not: it must not hold up the end of the server."""

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
    def __init__(self, gate: Gate, trying: Trying) -> None:
        self._gate = gate
        self._trying = trying

    def routes(self) -> APIRouter:
        router = APIRouter(prefix="/admin/api/models/{name:path}/trial")
        router.add_api_route("", self.show, methods=["GET"])
        router.add_api_route("", self.begin, methods=["POST"])
        router.add_api_route("/events", self.follow, methods=["GET"])
        for action in (self.estimate, self.cancel, self.apply, self.undo, self.write):
            router.add_api_route(f"/{action.__name__}", action, methods=["POST"])
        return router

    async def show(self, request: Request, name: str) -> Response:
        return JSONResponse(
            await self._trying.view(self._model(request, name), language_of(request))
        )

    async def estimate(self, request: Request, name: str) -> Response:
        """Nothing is loaded for it."""
        plan = await self._plan(request, self._model(request, name))
        estimate = await self._trying.planner.estimate(plan, await self._trying.rate(plan.model))
        return JSONResponse(estimate_view(estimate, language_of(request)))

    async def begin(self, request: Request, name: str) -> Response:
        """Answers at once; what comes of it is followed."""
        plan = await self._plan(request, self._model(request, name))
        trial = self._trying.trials.begin(plan)
        return JSONResponse(self._trying.told(trial, language_of(request)), 202)

    async def follow(self, request: Request, name: str) -> Response:
        model = self._model(request, name)
        trial = self._trying.trials.of(model)
        if trial is None:
            raise Conflict("trial.not_running", model=model)
        return sse.EventStream(self._frames(request, trial), lambda: None)

    async def cancel(self, request: Request, name: str) -> Response:
        """Answers when it has stopped."""
        model = self._model(request, name)
        await request.body()
        trial = await self._trying.trials.cancel(model)
        return JSONResponse(self._trying.told(trial, language_of(request)))

    async def apply(self, request: Request, name: str) -> Response:
        """`takes` says of each setting when it takes effect; `revision` is that of the model's settings now."""
        model = self._model(request, name)
        asked = read(Chosen, await request.body() or b"{}")
        setup = await self._trying.chosen(model, asked.setup)
        return JSONResponse(
            {"setup": setup.name, **await self._trying.applying.apply(model, setup)}
        )

    async def undo(self, request: Request, name: str) -> Response:
        model = self._model(request, name)
        await request.body()
        return JSONResponse(await self._trying.applying.undo(model))

    async def write(self, request: Request, name: str) -> Response:
        model = self._model(request, name)
        asked = read(Chosen, await request.body() or b"{}")
        return JSONResponse(
            await self._trying.applying.write(model, await self._trying.chosen(model, asked.setup))
        )

    def _model(self, request: Request, name: str) -> str:
        """Raises Unauthorized, NotFound."""
        self._gate.session(request)
        return self._trying.pool.entry(name).id

    async def _plan(self, request: Request, model: str) -> Plan:
        asked = read(Wanted, await request.body() or b"{}")
        return await self._trying.planner.plan(model, asked.drafts, asked.kinds, asked.tokens)

    async def _frames(self, request: Request, trial: Trial) -> AsyncGenerator[bytes, None]:
        language, begun = language_of(request), time.monotonic()
        yield b"retry: 100\n\n"
        async for _ in trial.follow(EVERY_S):
            yield sse.data(self._trying.told(trial, language))
            if (
                time.monotonic() - begun > FOLLOWED_S or self._gate.find(request) is None
            ):  # logged out meanwhile
                return
