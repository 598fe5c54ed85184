"""Trials of a model: the one of this run, stored results, and the applied configuration.

A trial has one form, the report of `omlx.measure.trial`: it is stored, sent and rendered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from omlx.catalog import sentence
from omlx.errors import BadRequest, ConfigError, Conflict, Reason
from omlx.measure.measurements import Measurements
from omlx.measure.planning import MAX_DRAFTS, Estimate, Planner
from omlx.measure.results import Conditions, History, StoredResult, stale
from omlx.measure.runner import State
from omlx.measure.samples import PLAIN, TrialConfiguration, find_configuration
from omlx.measure.texts import WRITTEN
from omlx.measure.trial import Trial
from omlx.measure.verdict import render_verdict
from omlx.models.catalog.package import (
    DeclaredNgram,
    DeclaredStrategy,
    declare_draft,
    write_package,
)
from omlx.server.services import Services
from omlx.settings.configuration import LiveConfiguration
from omlx.settings.schema import Scope, Value

from .settings.view import Json, applied
from .web import formats


@dataclass(frozen=True, slots=True)
class Applied:
    """`before` are the values stored before (None: none), `revision` the settings' one after."""

    configuration: TrialConfiguration
    before: Mapping[str, Value]
    revision: str


class TrialService:
    """Applied configurations can be undone until the model's settings change otherwise."""

    def __init__(
        self,
        services: Services,
        configuration: LiveConfiguration,
        measurements: Measurements,
    ) -> None:
        self.pool = services.pool
        self._settings = configuration
        self._applied: dict[str, Applied] = {}
        self.measurements = measurements
        self.planner = Planner(services.engine, services.pool, services.generations)

    def newest(self, model: str) -> Trial | None:
        """Return the newest trial of this process if it is one of that model."""
        trial = self.measurements.newest(Trial)
        return trial if trial is not None and trial.model == model else None

    async def history(self, model: str) -> History:
        return await asyncio.to_thread(self.measurements.store.trials, model)

    async def status(self, model: str, language: str) -> Json:
        """Return the record of a model's trials.

        `running` is the model of the running trial, of all models; `trial` the newest trial of
        this run, `last` the newest complete one, of earlier runs too, `results` the last one of
        each draft, `applied` the configuration that can be undone.
        """
        history = await self.history(model)
        trial, running = self.newest(model), self.measurements.running(Trial)
        applied = self._applied.get(model)
        record: Json = {
            "model": model,
            "running": None,
            "kinds": [kind.value for kind in WRITTEN],
            "conversation": self.planner.has_conversation(model),
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
        """Return tokens per second of plain decoding in the last trial, None if that is stale."""
        last = (await self.history(model)).report
        if last is None:
            return None
        if stale(last.conditions, await self.measurements.conditions((model,))):
            return None
        plain = [cell for cell in last.record["cells"] if cell["setup"] == PLAIN.name]
        rates = [cell["rate"]["median"] for cell in plain if cell["rate"]]
        return sum(rates) / len(rates) if rates else None

    async def configuration(self, model: str, name: str | None) -> TrialConfiguration:
        """Return a configuration of the newest complete trial, by default the recommended one.

        Raises Conflict without such a trial or a recommendation, BadRequest for an unknown name.
        """
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

    async def apply(self, model: str, configuration: TrialConfiguration) -> Json:
        """Store a configuration as the model's settings. Raises BadRequest, Outdated."""
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
        return await self._reconfigured(model, configuration.changes)

    async def undo(self, model: str) -> Json:
        """Restore the values stored before. Raises Conflict if there are none, Outdated."""
        applied = self._applied.get(model)
        if applied is None:
            raise Conflict("trial.nothing_applied", model=model)
        await self._patch(model, applied.before, applied.revision)
        del self._applied[model]
        return await self._reconfigured(model, applied.before)

    async def write(self, model: str, configuration: TrialConfiguration) -> tuple[Path, str]:
        """Declare a configuration as the default of the model's package; return its file and name.

        Raises ModelError if the draft does not fit or the file cannot be written, BadRequest for
        plain decoding, which a package cannot declare.
        """
        entry = self.pool.resolve(model)
        if configuration == PLAIN:
            raise BadRequest("trial.not_in_package", param="setup")
        declared: DeclaredStrategy = DeclaredNgram(None, None)
        name = "ngram"
        if configuration.draft is not None:
            draft = await asyncio.to_thread(
                declare_draft, entry, configuration.draft, None, self.pool.registry
            )
            declared, name = draft, draft.draft.repository.rpartition("/")[2].lower()
        path = await asyncio.to_thread(write_package, entry.path, declared, name)
        await self.pool.reconfigure()
        return path, name

    async def _patch(self, model: str, changes: Mapping[str, Value], revision: str) -> None:
        try:
            await asyncio.to_thread(self._settings.patch, changes, model, expected=revision)
        except ConfigError as error:
            raise BadRequest(error.code, param=error.param, **error.params) from error

    async def _revision(self, model: str) -> str:
        return (await asyncio.to_thread(self._settings.refresh)).stored.revision(model)

    async def _reconfigured(self, model: str, changes: Mapping[str, Value]) -> Json:
        """Have the pool take up the changes. Return when each takes effect, and the revision."""
        reloading = [loading.entry.id for loading in await self.pool.reconfigure()]
        busy = model in reloading and self.pool.status(model).active > 0
        resolution = self._settings.current.resolve(model)
        takes = applied(changes, resolution, Scope.MODEL, busy=busy)
        return {"takes": takes, "revision": await self._revision(model)}


def report_record(report: Mapping[str, Any], language: str) -> Json:
    """Add the sentences of reason, exactness, a draft's error and verdict to a report."""
    record = dict(report)
    for name in ("reason", "exact", "draft_error"):
        if record.get(name) is not None:  # older results have no draft_error
            message = sentence(record[name]["code"], record[name]["params"], language)
            record[name] = {**record[name], "message": message}
    if record["verdict"] is not None:
        message = render_verdict(record["verdict"], language)
        record["verdict"] = {**record["verdict"], "message": message}
    return record


def stored_record(result: StoredResult, now: Conditions, language: str) -> Json:
    """A stored result: `at` in seconds since the epoch; `stale` says why it no longer holds."""
    record = dict(result.record)
    if "verdict" in record:
        record = report_record(record, language)
    reasons = [reason_record(reason, language) for reason in stale(result.conditions, now)]
    return {"record": record, "at": result.at, "stale": reasons}


def estimate_record(estimate: Estimate, language: str = "en") -> Json:
    """Times in seconds, memory in bytes; `said` holds the sentences."""
    record = asdict(estimate)
    record["least_s"] = round(estimate.least_s, 1)
    record["most_s"] = round(estimate.most_s, 1)
    record["said"] = [reason_record(reason, language) for reason in _sentences(estimate, language)]
    return record


def reason_record(reason: Reason, language: str) -> Json:
    message = sentence(reason.code, reason.params, language)
    return {"code": reason.code, "params": reason.params, "message": message}


def _sentences(estimate: Estimate, language: str) -> list[Reason]:
    least = formats.duration(estimate.least_s, language)
    most = formats.duration(estimate.most_s, language)
    size, limit = formats.memory(estimate.memory_bytes), formats.memory(estimate.limit_bytes)
    time, memory = "trial.estimate.time", "trial.estimate.memory"
    if least == most:
        time = "trial.estimate.about"
    if not estimate.fits:
        memory = "trial.estimate.no_room"
    elif not estimate.memory_bytes:
        memory = "trial.estimate.no_memory"
    sentences = [
        Reason(time, {"least": least, "most": most}),
        Reason(memory, {"size": size, "limit": limit}),
    ]
    if estimate.guessed:
        sentences.append(Reason("trial.estimate.guessed"))
    return sentences
