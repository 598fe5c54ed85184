"""One trial at a time for the whole server: begun, followed, stopped; its end kept."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable
from contextlib import suppress

from omlx.errors import Conflict, OmlxError, Reason
from omlx.models.pool.pool import Pool
from omlx.models.pool.resident import LoadJob
from omlx.server.errors import unexpected
from omlx.trial.conditions import Conditions
from omlx.trial.report import of_draft, report
from omlx.trial.result_store import History, ResultStore, StoredResult
from omlx.trial.trial import Plan, State, Trial, TrialRunner

log = logging.getLogger("omlx.trial")


class Trials:
    """On the event loop. `wall` tells the seconds since 1970."""

    def __init__(
        self,
        pool: Pool,
        runner: TrialRunner,
        results: ResultStore,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._pool = pool
        self._runner = runner
        self._results = results
        self._wall = wall
        self._newest: Trial | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def running(self) -> Trial | None:
        return self._newest if self._newest is not None and not self._newest.state.over else None

    def of(self, model: str) -> Trial | None:
        """The newest trial of this run, if it is one of that model."""
        return (
            self._newest if self._newest is not None and self._newest.plan.model == model else None
        )

    def begin(self, plan: Plan) -> Trial:
        """Raises Conflict while there is another one."""
        if self.running is not None:
            raise Conflict("trial.running", model=self.running.plan.model)
        trial = self._newest = Trial(uuid.uuid4().hex, plan)
        self._task = asyncio.create_task(self._run(trial))
        return trial

    async def cancel(self, model: str) -> Trial:
        """Stop the trial of a model; returns when it has. Raises Conflict if there is none."""
        trial = self.of(model)
        if trial is None or trial.state.over or self._task is None:
            raise Conflict("trial.not_running", model=model)
        self._task.cancel()
        await asyncio.wait([self._task])
        return trial

    async def conditions(self, models: tuple[str, ...]) -> Conditions:
        """Those under which these models would be tried now; models that have gone are left out."""
        registry = self._pool.registry
        here = [registry.find(model) for model in models if model in registry]
        return await asyncio.to_thread(Conditions.now, here)

    async def history(self, model: str) -> History:
        """What earlier trials found."""
        return await asyncio.to_thread(self._results.of, model)

    async def _run(self, trial: Trial) -> None:
        """To whatever end it has. When it is told, the result is kept and the model is as it is configured to be."""
        state = State.FAILED
        try:
            conditions = await self.conditions((trial.plan.model, *trial.plan.drafts))
            await self._runner.run(trial)
            await self._keep(trial, conditions)
            state = State.DONE
        except asyncio.CancelledError:
            state = State.CANCELLED
            raise
        except OmlxError as error:
            trial.reason = Reason(error.code, error.params)
        except Exception as error:  # the edge of a background task
            log.exception("trial")
            failed = unexpected(error)
            trial.reason = Reason(failed.code, failed.params)
        finally:
            with suppress(OmlxError):  # the model may be gone
                await self._as_configured(trial.plan.model)
            trial.state = state
            trial.change()

    async def _as_configured(self, model: str) -> None:
        """Have the configured draft again at the next idle moment, if a trial has left another one."""
        entry, resident = self._pool.resolve(model), self._pool.residents.find(model)
        drafting = (await asyncio.to_thread(self._pool.speculation, model)).active_draft
        if resident is not None and resident.served.draft != (
            drafting.id if drafting is not None else None
        ):
            self._pool.load_queue.begin(LoadJob(entry, again=True))

    async def _keep(self, trial: Trial, conditions: Conditions) -> None:
        plan, at = trial.plan, self._wall()
        drafts = {
            draft: StoredResult(of_draft(plan, trial.samples, draft), at, conditions)
            for draft in plan.drafts
        }
        whole = StoredResult({**report(trial), "state": State.DONE.value}, at, conditions)
        await asyncio.to_thread(self._results.keep, plan.model, whole, drafts)
