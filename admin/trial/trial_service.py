"""Everything that the dashboard knows of trials: what runs, what was found, what was taken up."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omlx.errors import BadRequest, Conflict
from omlx.server.services import Services
from omlx.trial.configurations import PLAIN, TrialConfiguration, find_configuration
from omlx.trial.planning import MAX_DRAFTS, Planner
from omlx.trial.report import configuration_record, report
from omlx.trial.result_store import ResultStore
from omlx.trial.run_sample import SampleRunner
from omlx.trial.texts import WRITTEN
from omlx.trial.trial import State, Trial, TrialRunner
from omlx.trial.trials import Trials

from ..settings.applying import Applying
from ..settings.view import Json
from .view import kept_view, report_view


class Trying:
    def __init__(self, services: Services, applying: Applying, home: Path) -> None:
        engine, pool, generations = services.engine, services.pool, services.generations
        runner = TrialRunner(SampleRunner(engine, pool), pool, generations)
        self.pool = pool
        self.applying = applying
        self.trials = Trials(pool, runner, ResultStore(home))
        self.planner = Planner(engine, pool, generations)

    async def view(self, model: str, language: str) -> Json:
        """`trial` is the newest one of this run, over or not; `last` the newest that came to its end, of earlier runs
        too; `results` what was last found of each draft. `running` names the model that is being tried, whichever."""
        trials, history, applied = (
            self.trials,
            await self.trials.history(model),
            self.applying.of(model),
        )
        trial, running = trials.of(model), trials.running
        last = history.report
        results = {
            draft: kept_view(kept, await trials.conditions((model, draft)), language)
            for draft, kept in history.drafts.items()
        }
        tried = () if last is None else (model, *last.record["drafts"])
        return {
            "model": model,
            "running": None if running is None else running.plan.model,
            "kinds": [kind.value for kind in WRITTEN],
            "conversation": self.planner.has_conversation(model),
            "most_drafts": MAX_DRAFTS,
            "trial": None if trial is None else self.told(trial, language),
            "last": None
            if last is None
            else kept_view(last, await trials.conditions(tried), language),
            "results": results,
            "applied": None if applied is None else configuration_record(applied.setup),
        }

    def told(self, trial: Trial, language: str) -> Json:
        return report_view(report(trial), language)

    async def rate(self, model: str) -> float | None:
        """What plain decoding did in the last trial, in tokens per second, if that still counts."""
        last = (await self.trials.history(model)).report
        if last is None or last.stale(await self.trials.conditions((model,))):
            return None
        rates = [
            cell["rate"]["median"]
            for cell in last.record["cells"]
            if cell["setup"] == PLAIN.name and cell["rate"]
        ]
        return sum(rates) / len(rates) if rates else None

    async def chosen(self, model: str, name: str | None) -> TrialConfiguration:
        """One of the setups of the newest finished trial; the recommended one if none is named.

        Raises Conflict where there is nothing to take up, BadRequest for what was not tried.
        """
        found = await self._result(model)
        if found is None:
            raise Conflict("trial.no_result", model=model)
        recommended = found["verdict"]["setup"]
        name = name or (recommended["name"] if recommended is not None else None)
        if name is None:
            raise Conflict("trial.no_recommendation", model=model)
        setup = find_configuration(name, found["drafts"])
        if setup is None:
            raise BadRequest("trial.unknown_setup", param="setup", setup=name)
        return setup

    async def _result(self, model: str) -> Mapping[str, Any] | None:
        trial = self.trials.of(model)
        if trial is not None and trial.state is State.DONE:
            return report(trial)
        last = (await self.trials.history(model)).report
        return None if last is None else last.record
