"""The trials of this server: one at a time, begun, followed, cancelled, and stored when done."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable
from contextlib import suppress

from omlx.errors import Conflict, OmlxError, Reason
from omlx.models.pool.load_queue import LoadJob
from omlx.models.pool.pool import Pool
from omlx.server.http.errors import unexpected
from omlx.trial.conditions import Conditions
from omlx.trial.exclusive import Exclusive
from omlx.trial.report import draft_record, report
from omlx.trial.result_store import History, ResultStore, StoredResult
from omlx.trial.trial import Plan, State, Trial, TrialRunner

log = logging.getLogger("omlx.trial")


class Trials:
    """Lives on the event loop. `wall` returns seconds since 1970."""

    def __init__(
        self,
        pool: Pool,
        runner: TrialRunner,
        store: ResultStore,
        exclusive: Exclusive,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._pool = pool
        self._runner = runner
        self._store = store
        self._exclusive = exclusive
        self._wall = wall
        self.newest: Trial | None = None
        """The newest trial of this process, running or over."""
        self._task: asyncio.Task[None] | None = None
        exclusive.add(self._conflict)

    @property
    def running(self) -> Trial | None:
        if self.newest is None or self.newest.state.over:
            return None
        return self.newest

    def of(self, model: str) -> Trial | None:
        """Return the newest trial of this process if it is one of that model."""
        if self.newest is None or self.newest.plan.model != model:
            return None
        return self.newest

    def begin(self, plan: Plan) -> Trial:
        """Start a trial. Raises Conflict while another one, or a benchmark, runs."""
        self._exclusive.check()
        trial = self.newest = Trial(uuid.uuid4().hex, plan)
        self._task = asyncio.create_task(self._run(trial))
        return trial

    async def cancel(self, model: str) -> Trial:
        """Stop the trial of a model; returns when it has stopped. Raises Conflict if none runs."""
        trial = self.of(model)
        if trial is None or trial.state.over or self._task is None:
            raise Conflict("trial.not_running", model=model)
        self._task.cancel()
        await asyncio.wait([self._task])
        if not trial.state.over:  # cancelled before it began to run
            trial.state = State.CANCELLED
            trial.change()
        return trial

    async def conditions(self, models: tuple[str, ...]) -> Conditions:
        """Return the current conditions of these models; unknown models are left out."""
        registry = self._pool.registry
        entries = [registry.get_usable(model) for model in models if model in registry]
        return await asyncio.to_thread(Conditions.now, entries)

    async def history(self, model: str) -> History:
        """Return the stored results of a model."""
        return await asyncio.to_thread(self._store.load, model)

    def _conflict(self) -> Conflict | None:
        running = self.running
        return None if running is None else Conflict("trial.running", model=running.plan.model)

    async def _run(self, trial: Trial) -> None:
        """Run a trial to its end, store its result, restore the model's configured draft.

        The model cannot be unloaded meanwhile: the trial would load it again.
        """
        held = Reason("trial.unload", {"model": trial.plan.model})
        with self._pool.residents.hold(trial.plan.model, held):
            await self._run_held(trial)

    async def _run_held(self, trial: Trial) -> None:
        state = State.FAILED
        try:
            conditions = await self.conditions((trial.plan.model, *trial.plan.drafts))
            await self._runner.run(trial)
            await self._save(trial, conditions)
            state = State.DONE
        except asyncio.CancelledError:
            state = State.CANCELLED
            raise
        except OmlxError as error:
            trial.reason = Reason(error.code, error.params)
        except Exception as error:  # the edge of a background task
            log.exception("trial")
            failure = unexpected(error)
            trial.reason = Reason(failure.code, failure.params)
        finally:
            with suppress(OmlxError):  # the model may be gone
                await self._restore_draft(trial.plan.model)
            trial.state = state
            trial.change()

    async def _restore_draft(self, model: str) -> None:
        """Reload the configured draft when idle, if the trial left another one resident."""
        entry, resident = self._pool.resolve(model), self._pool.residents.find(model)
        drafting = (await asyncio.to_thread(self._pool.speculation, model)).active_draft
        configured = drafting.id if drafting is not None else None
        if resident is not None and resident.served.draft != configured:
            self._pool.load_queue.submit(LoadJob(entry, reload=True))

    async def _save(self, trial: Trial, conditions: Conditions) -> None:
        plan, now = trial.plan, self._wall()
        drafts = {}
        for draft in plan.drafts:
            drafts[draft] = StoredResult(draft_record(plan, trial.samples, draft), now, conditions)
        record = {**report(trial), "state": State.DONE.value}
        stored = StoredResult(record, now, conditions)
        await asyncio.to_thread(self._store.save, plan.model, stored, drafts)
