"""Status of a model's trials: the one of this run, stored results, and what was taken up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omlx.errors import BadRequest, Conflict, Reason
from omlx.server.services import Services
from omlx.trial.configurations import PLAIN, TrialConfiguration, find_configuration
from omlx.trial.planning import Planner
from omlx.trial.report import report
from omlx.trial.result_store import ResultStore, StoredResult
from omlx.trial.run_sample import SampleRunner
from omlx.trial.trial import State, TrialRunner
from omlx.trial.trials import Trials

from .apply import TrialApplier

Report = Mapping[str, Any]
"""A trial as `omlx.trial.report` writes it."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """A stored result; `stale` says why it no longer holds, and is empty if it does."""

    result: StoredResult
    stale: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class TrialStatus:
    """`running` is the model of the running trial, of all models; `conversation`: a recent prompt can be tried.

    `trial` is the newest trial of this run, `last` the newest complete one, of earlier runs too,
    `results` the last one of each draft, `applied` the configuration that can be undone.
    """

    model: str
    running: str | None = None
    conversation: bool = False
    trial: Report | None = None
    last: Measurement | None = None
    results: Mapping[str, Measurement] = field(default_factory=dict)
    applied: TrialConfiguration | None = None


class TrialService:
    def __init__(self, services: Services, applier: TrialApplier, home: Path) -> None:
        engine, pool, generations = services.engine, services.pool, services.generations
        runner = TrialRunner(SampleRunner(engine, pool), pool, generations)
        self.pool = pool
        self.applier = applier
        self.trials = Trials(pool, runner, ResultStore(home))
        self.planner = Planner(engine, pool, generations)

    async def status(self, model: str) -> TrialStatus:
        history = await self.trials.history(model)
        trial, running = self.trials.of(model), self.trials.running
        last = None
        if history.report is not None:
            last = await self._measurement(history.report, model, *history.report.record["drafts"])
        results = {}
        for draft, result in history.drafts.items():
            results[draft] = await self._measurement(result, model, draft)
        return TrialStatus(
            model,
            running=None if running is None else running.plan.model,
            conversation=self.planner.has_conversation(model),
            trial=None if trial is None else report(trial),
            last=last,
            results=results,
            applied=self.applier.applied(model),
        )

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

    async def _result(self, model: str) -> Report | None:
        trial = self.trials.of(model)
        if trial is not None and trial.state is State.DONE:
            return report(trial)
        last = (await self.trials.history(model)).report
        return None if last is None else last.record

    async def _measurement(self, result: StoredResult, *models: str) -> Measurement:
        return Measurement(result, result.stale(await self.trials.conditions(models)))
