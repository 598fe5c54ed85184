"""Trials of a model: the one of this run, stored results, and the applied configuration.

A trial has one form, the record of `omlx.trial.report`: it is stored, sent and rendered.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omlx.errors import BadRequest, Conflict
from omlx.server.services import Services
from omlx.trial.configurations import PLAIN, TrialConfiguration, find_configuration
from omlx.trial.exclusive import Exclusive
from omlx.trial.planning import MAX_DRAFTS, Planner
from omlx.trial.report import configuration_record, report
from omlx.trial.result_store import ResultStore
from omlx.trial.run_sample import SampleRunner
from omlx.trial.texts import WRITTEN
from omlx.trial.trial import State, TrialRunner
from omlx.trial.trials import Trials

from ..settings.view import Json
from .apply import TrialApplier
from .records import report_record, stored_record


class TrialService:
    def __init__(
        self, services: Services, applier: TrialApplier, home: Path, exclusive: Exclusive
    ) -> None:
        engine, pool, generations = services.engine, services.pool, services.generations
        runner = TrialRunner(SampleRunner(engine, pool), pool, generations)
        self.pool = pool
        self.applier = applier
        self.trials = Trials(pool, runner, ResultStore(home), exclusive)
        self.planner = Planner(engine, pool, generations)

    async def status(self, model: str, language: str) -> Json:
        """Return the record of a model's trials.

        `running` is the model of the running trial, of all models; `trial` the newest trial of
        this run, `last` the newest complete one, of earlier runs too, `results` the last one of
        each draft, `applied` the configuration that can be undone.
        """
        history = await self.trials.history(model)
        trial, running, last = self.trials.of(model), self.trials.running, history.report
        applied = self.applier.applied(model)
        record: Json = {
            "model": model,
            "running": None,
            "kinds": [kind.value for kind in WRITTEN],
            "conversation": self.planner.has_conversation(model),
            "most_drafts": MAX_DRAFTS,
            "trial": None if trial is None else report_record(report(trial), language),
            "last": None,
            "results": {},
            "applied": None,
        }
        if running is not None:
            record["running"] = running.plan.model
        if applied is not None:
            record["applied"] = configuration_record(applied.configuration)
        if last is not None:
            conditions = await self.trials.conditions((model, *last.record["drafts"]))
            record["last"] = stored_record(last, conditions, language)
        for draft, result in history.drafts.items():
            conditions = await self.trials.conditions((model, draft))
            record["results"][draft] = stored_record(result, conditions, language)
        return record

    async def plain_rate(self, model: str) -> float | None:
        """Return tokens per second of plain decoding in the last trial, None if that is stale."""
        last = (await self.trials.history(model)).report
        if last is None or last.stale(await self.trials.conditions((model,))):
            return None
        plain = [cell for cell in last.record["cells"] if cell["setup"] == PLAIN.name]
        rates = [cell["rate"]["median"] for cell in plain if cell["rate"]]
        return sum(rates) / len(rates) if rates else None

    async def configuration(self, model: str, name: str | None) -> TrialConfiguration:
        """Return a configuration of the newest complete trial, by default the recommended one.

        Raises Conflict without such a trial or a recommendation, BadRequest for an unknown name.
        """
        result = await self._result(model)
        if result is None:
            raise Conflict("trial.no_result", model=model)
        recommended = result["verdict"]["setup"]
        if not name and recommended is None:
            raise Conflict("trial.no_recommendation", model=model)
        name = name or str(recommended["name"])
        configuration = find_configuration(name, result["drafts"])
        if configuration is None:
            raise BadRequest("trial.unknown_setup", param="setup", setup=name)
        return configuration

    async def _result(self, model: str) -> Mapping[str, Any] | None:
        trial = self.trials.of(model)
        if trial is not None and trial.state is State.DONE:
            return report(trial)
        last = (await self.trials.history(model)).report
        return None if last is None else last.record
