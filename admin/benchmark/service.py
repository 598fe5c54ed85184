"""The benchmarks of the dashboard: those that are stored, and the one that runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

from omlx.errors import NotFound
from omlx.server.services import Services
from omlx.speed.benchmark import BenchmarkRunner
from omlx.speed.benchmarks import Benchmarks
from omlx.speed.report import report
from omlx.speed.run_store import RunStore
from omlx.trial.conditions import Conditions
from omlx.trial.exclusive import Exclusive
from omlx.trial.run_sample import SampleRunner
from omlx.trial.trial import State

from .view import OutcomeView, RunView, choose, run_view


class BenchmarkService:
    def __init__(self, services: Services, home: Path, exclusive: Exclusive) -> None:
        engine, pool = services.engine, services.pool
        samples = SampleRunner(engine, pool)
        runner = BenchmarkRunner(engine, pool, services.generations, samples)
        self.pool = pool
        self.benchmarks = Benchmarks(pool, runner, RunStore(home), exclusive)

    async def runs(self, model: str) -> list[RunView]:
        """Return the stored runs of a model, the newest first."""
        results = await self.benchmarks.runs(model)
        entries = [self.pool.entry(model)]
        now = await asyncio.to_thread(Conditions.now, entries)
        return [run_view(result, result.stale(now)) for result in results]

    async def outcome(self, model: str, key: str | None, other: str | None) -> OutcomeView:
        """Return what the page shows of a model; `key` and `other` name runs."""
        newest = self.benchmarks.newest  # before its run is read, which is stored before it ends
        running = ended = None
        if newest is not None and not newest.state.over:
            running = report(newest)
        elif newest is not None and newest.model == model and newest.state is not State.DONE:
            ended = report(newest)
        runs = await self.runs(model)
        shown, compared = choose(runs, key, other)
        return OutcomeView(model, running, ended, runs, shown, compared)

    async def run(self, model: str, key: str | None) -> RunView:
        """Return a stored run, by default the newest. Raises NotFound."""
        for run in await self.runs(model):
            if key in (None, run.key):
                return run
        raise NotFound("benchmark.no_result", model=model)
