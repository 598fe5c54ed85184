"""Trials of a model: API, results, and the applied configuration.

    GET  …           possible trials, the running trial, the last result
    POST …/estimate  time and memory of a trial; runs nothing
    POST …           begin
    GET  …/events    the report as server-sent events until the trial is over
    POST …/cancel    stop
    POST …/apply     store the recommended or the given configuration; …/undo restores the values
    POST …/write     declare a configuration in the model's package

Below `/admin/api/models/{model}/trial`. A trial has a single form, stored, sent and rendered: the
report of `omlx.measure.trial`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from omlx.errors import BadRequest, ConfigError, Conflict
from omlx.measure.planning import MAX_DRAFTS, Planner
from omlx.measure.results import History, stale
from omlx.measure.runner import Measurements, State
from omlx.measure.samples import PLAIN, TrialConfiguration, find_configuration
from omlx.measure.texts import WRITTEN, Kind
from omlx.measure.trial import Plan, Trial
from omlx.models.catalog.package import (
    DeclaredNgram,
    DeclaredStrategy,
    declare_draft,
    write_package,
)
from omlx.server.http.transport import EventStream, Json
from omlx.server.request.dialect import event_data
from omlx.server.services import Services
from omlx.settings.configuration import LiveConfiguration
from omlx.settings.schema import Scope, Value

from .login import Gate
from .settings.view import applied
from .trial_view import estimate_record, report_record, stored_record
from .web.preferences import Strict, language_of

TOKENS: Final = 128
MIN_TOKENS, MAX_TOKENS = 16, 512
EVENT_INTERVAL_S: Final = 0.15
"""Seconds — minimum between two events of a stream."""

STREAM_S: Final = 5.0
"""Seconds — an event stream ends, and the browser reconnects; longer would delay the shutdown."""

Name = Annotated[str, Field(max_length=400)]


class TrialRequest(Strict):
    """Body of a trial: drafts by name, kinds of text, answer length in tokens.

    `picture`: data URI of an image for the kind `picture`.
    """

    drafts: list[Name] = Field(default_factory=list, max_length=16)
    kinds: list[Kind] = Field(default_factory=lambda: [*WRITTEN], max_length=16)
    tokens: Annotated[int, Field(ge=MIN_TOKENS, le=MAX_TOKENS)] = TOKENS
    picture: str = ""


class ConfigurationChoice(Strict):
    """Body that names a configuration of the trial; by default the recommended one."""

    setup: Name | None = None


@dataclass(frozen=True, slots=True)
class Applied:
    """`before`: values stored before (None: none); `revision`: of the settings afterwards."""

    configuration: TrialConfiguration
    before: Mapping[str, Value]
    revision: str


class Trials:
    """API and results. Applied configurations can be undone until the settings change otherwise."""

    def __init__(
        self,
        gate: Gate,
        services: Services,
        configuration: LiveConfiguration,
        measurements: Measurements,
    ) -> None:
        self._gate = gate
        self._pool = services.pool
        self._settings = configuration
        self._applied: dict[str, Applied] = {}
        self._planner = Planner(services.engine, services.pool, services.generations)
        self.measurements = measurements

    def register(self, router: APIRouter) -> None:
        trial = "/models/{name:path}/trial"
        router.add_api_route(trial, self.show, methods=["GET"])
        router.add_api_route(trial, self.begin, methods=["POST"])
        router.add_api_route(f"{trial}/events", self.follow, methods=["GET"])
        for action in (self.estimate, self.cancel, self.apply, self.undo, self.write):
            router.add_api_route(f"{trial}/{action.__name__}", action, methods=["POST"])

    async def show(self, request: Request, name: str) -> Response:
        return JSONResponse(await self.status(self._id(name), language_of(request)))

    async def estimate(self, request: Request, name: str) -> Response:
        plan = await self._plan(request, self._id(name))
        rate = await self.plain_rate(plan.model)
        estimate = await self._planner.estimate(plan, rate)
        return JSONResponse(estimate_record(estimate, language_of(request)))

    async def begin(self, request: Request, name: str) -> Response:
        """Begin a trial; answers at once."""
        trial = Trial(await self._plan(request, self._id(name)))
        self.measurements.begin(trial)
        return JSONResponse(report_record(trial.report(), language_of(request)), 202)

    async def follow(self, request: Request, name: str) -> Response:
        model = self._id(name)
        trial = self.newest(model)
        if trial is None:
            raise Conflict("trial.not_running", model=model)
        return EventStream(self._frames(request, trial), lambda: None)

    async def cancel(self, request: Request, name: str) -> Response:
        """Stop the trial; answers once stopped."""
        model = self._id(name)
        await request.body()
        trial = self.newest(model)
        if trial is None or trial.state.over:
            raise Conflict("trial.not_running", model=model)
        await self.measurements.stop(trial)
        return JSONResponse(report_record(trial.report(), language_of(request)))

    async def apply(self, request: Request, name: str) -> Response:
        """Store a configuration as the model's settings; answer with their effective times."""
        model = self._id(name)
        configuration = await self._configuration(request, model)
        revision = await self._revision(model)
        layer = self._settings.current.stored.layer(model)
        before: Mapping[str, Value] = {
            name: layer.values.get(name) for name in configuration.changes
        }
        earlier = self._applied.get(model)
        if earlier is not None and earlier.revision == revision:
            before = earlier.before  # two in a row are undone at once
        await self._patch(model, configuration.changes, revision)
        self._applied[model] = Applied(configuration, before, await self._revision(model))
        taken = await self._reconfigured(model, configuration.changes)
        return JSONResponse({"setup": configuration.name, **taken})

    async def undo(self, request: Request, name: str) -> Response:
        """Restore the values stored before. Raises Conflict if there are none, Outdated."""
        model = self._id(name)
        await request.body()
        applied = self._applied.get(model)
        if applied is None:
            raise Conflict("trial.nothing_applied", model=model)
        await self._patch(model, applied.before, applied.revision)
        del self._applied[model]
        return JSONResponse(await self._reconfigured(model, applied.before))

    async def write(self, request: Request, name: str) -> Response:
        """Declare a configuration as the default of the model's package.

        Raises ModelError if the draft does not fit or the file cannot be written, BadRequest for
        plain decoding, which a package cannot declare.
        """
        model = self._id(name)
        configuration = await self._configuration(request, model)
        entry = self._pool.resolve(model)
        if configuration == PLAIN:
            raise BadRequest("trial.not_in_package", param="setup")
        declared: DeclaredStrategy = DeclaredNgram(None, None)
        strategy = "ngram"
        if configuration.draft is not None:
            draft = await asyncio.to_thread(
                declare_draft, entry, configuration.draft, None, self._pool.registry
            )
            declared, strategy = draft, draft.draft.repository.rpartition("/")[2].lower()
        path = await asyncio.to_thread(write_package, entry.path, declared, strategy)
        await self._pool.reconfigure()
        return JSONResponse({"file": str(path), "name": strategy})

    def _id(self, name: str) -> str:
        """Raises NotFound."""
        return self._pool.entry(name).id

    async def _plan(self, request: Request, model: str) -> Plan:
        trial = TrialRequest.parse(await request.body() or b"{}")
        return await self._planner.plan(
            model, trial.drafts, trial.kinds, trial.tokens, trial.picture
        )

    async def _frames(self, request: Request, trial: Trial) -> AsyncGenerator[bytes, None]:
        language, begun = language_of(request), time.monotonic()
        # Milliseconds until the browser reconnects.
        yield b"retry: 100\n\n"
        async for _ in trial.follow(EVENT_INTERVAL_S):
            yield event_data(report_record(trial.report(), language))
            logged_out = not self._gate.logged_in(request)
            if time.monotonic() - begun > STREAM_S or logged_out:
                return

    def newest(self, model: str) -> Trial | None:
        """Return the newest trial of this process, if of `model`."""
        trial = self.measurements.newest(Trial)
        return trial if trial is not None and trial.model == model else None

    async def history(self, model: str) -> History:
        return await asyncio.to_thread(self.measurements.store.trials, model)

    async def status(self, model: str, language: str) -> Json:
        """Return the record of a model's trials.

        `running`: model of the running trial, any model's; `trial`: newest trial of this run;
        `last`: newest complete trial, of earlier runs too; `results`: last result of each draft;
        `applied`: the configuration that can be undone.
        """
        history = await self.history(model)
        trial, running = self.newest(model), self.measurements.running(Trial)
        applied = self._applied.get(model)
        record: Json = {
            "model": model,
            "running": None,
            "kinds": [kind.value for kind in WRITTEN],
            "conversation": self._planner.has_conversation(model),
            "most_drafts": MAX_DRAFTS,
            "trial": None if trial is None else report_record(trial.report(), language),
            "last": None,
            "results": {},
            "applied": None,
        }
        if running is not None:
            record["running"] = running.model
        if applied is not None:
            record["applied"] = applied.configuration.to_json()
        if history.report is not None:
            last = history.report
            conditions = await self.measurements.conditions((model, *last.record["drafts"]))
            record["last"] = stored_record(last, conditions, language)
        for draft, result in history.drafts.items():
            conditions = await self.measurements.conditions((model, draft))
            record["results"][draft] = stored_record(result, conditions, language)
        return record

    async def plain_rate(self, model: str) -> float | None:
        """Return the last trial's plain decode rate in tokens per second; None if stale."""
        last = (await self.history(model)).report
        if last is None:
            return None
        if stale(last.conditions, await self.measurements.conditions((model,))):
            return None
        plain = [cell for cell in last.record["cells"] if cell["setup"] == PLAIN.name]
        rates = [cell["rate"]["median"] for cell in plain if cell["rate"]]
        return sum(rates) / len(rates) if rates else None

    async def _configuration(self, request: Request, model: str) -> TrialConfiguration:
        """Return a configuration of the newest complete trial, by default the recommended.

        Raises Conflict without such a trial or recommendation, BadRequest for an unknown name.
        """
        name = ConfigurationChoice.parse(await request.body() or b"{}").setup
        trial, last = self.newest(model), (await self.history(model)).report
        if trial is not None and trial.state is State.DONE:
            result: Mapping[str, Any] = trial.report()
        elif last is not None:
            result = last.record
        else:
            raise Conflict("trial.no_result", model=model)
        recommended = result["verdict"]["setup"]
        if not name and recommended is None:
            raise Conflict("trial.no_recommendation", model=model)
        name = name or str(recommended["name"])
        configuration = find_configuration(name, result["drafts"])
        if configuration is None:
            raise BadRequest("trial.unknown_setup", param="setup", setup=name)
        return configuration

    async def _patch(self, model: str, changes: Mapping[str, Value], revision: str) -> None:
        try:
            await asyncio.to_thread(self._settings.patch, changes, model, expected=revision)
        except ConfigError as error:
            raise BadRequest(error.code, param=error.param, **error.params) from error

    async def _revision(self, model: str) -> str:
        return (await asyncio.to_thread(self._settings.refresh)).stored.revision(model)

    async def _reconfigured(self, model: str, changes: Mapping[str, Value]) -> Json:
        """Reconfigure the pool; return effective times and the new revision."""
        reloading = [loading.entry.id for loading in await self._pool.reconfigure()]
        busy = model in reloading and self._pool.status(model).active > 0
        resolution = self._settings.current.resolve(model)
        takes = applied(changes, resolution, Scope.MODEL, busy=busy)
        return {"takes": takes, "revision": await self._revision(model)}
