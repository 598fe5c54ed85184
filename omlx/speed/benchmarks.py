"""The benchmarks of this server: one at a time, begun, stopped, and stored when done."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid

from omlx.errors import Conflict, OmlxError, Reason
from omlx.models.pool.pool import Pool
from omlx.server.http.errors import unexpected
from omlx.speed.benchmark import Benchmark, BenchmarkRunner
from omlx.speed.report import report
from omlx.speed.run_store import RunStore
from omlx.trial.conditions import Conditions
from omlx.trial.exclusive import Exclusive
from omlx.trial.result_store import StoredResult
from omlx.trial.trial import State

log = logging.getLogger("omlx.speed")


class Benchmarks:
    """Lives on the event loop."""

    def __init__(
        self, pool: Pool, runner: BenchmarkRunner, store: RunStore, exclusive: Exclusive
    ) -> None:
        self._pool = pool
        self._runner = runner
        self._store = store
        self._exclusive = exclusive
        self._task: asyncio.Task[None] | None = None
        self.newest: Benchmark | None = None
        """The newest benchmark of this process, running or over."""
        exclusive.add(self._conflict)

    @property
    def running(self) -> Benchmark | None:
        if self.newest is None or self.newest.state.over:
            return None
        return self.newest

    def begin(self, model: str, longest: int) -> Benchmark:
        """Start a benchmark with prompts of at most `longest` tokens.

        Raises NotFound, and Conflict while another one, or a trial, runs.
        """
        entry = self._pool.resolve(model)
        self._exclusive.check()
        benchmark = self.newest = Benchmark(uuid.uuid4().hex, entry.id, longest)
        self._task = asyncio.create_task(self._run(benchmark))
        return benchmark

    async def stop(self) -> Benchmark:
        """Stop the benchmark; returns when it has stopped. Raises Conflict if none runs."""
        running = self.running
        if running is None or self._task is None:
            raise Conflict("benchmark.not_running")
        self._task.cancel()
        await asyncio.wait([self._task])
        if not running.state.over:  # cancelled before it began to run
            running.state = State.CANCELLED
        return running

    async def runs(self, model: str) -> list[StoredResult]:
        """Return what is stored of a model, the newest first."""
        return await asyncio.to_thread(self._store.load, model)

    def _conflict(self) -> Conflict | None:
        running = self.running
        return None if running is None else Conflict("benchmark.running", model=running.model)

    async def _run(self, benchmark: Benchmark) -> None:
        """Run to the end. The model cannot be unloaded meanwhile: it would be loaded again."""
        held = Reason("benchmark.unload", {"model": benchmark.model})
        state = State.FAILED
        try:
            with self._pool.residents.hold(benchmark.model, held):
                await self._runner.run(benchmark)
            await self._save(benchmark)
            state = State.DONE
        except asyncio.CancelledError:
            state = State.CANCELLED
            raise
        except OmlxError as error:
            benchmark.reason = Reason(error.code, error.params)
        except Exception as error:  # the edge of a background task
            log.exception("benchmark")
            failure = unexpected(error)
            benchmark.reason = Reason(failure.code, failure.params)
        finally:
            benchmark.state = state

    async def _save(self, benchmark: Benchmark) -> None:
        names = (benchmark.model, benchmark.draft)
        registry = self._pool.registry
        entries = [registry.get_usable(name) for name in names if name and name in registry]
        conditions = await asyncio.to_thread(Conditions.now, entries)
        record = {**report(benchmark), "state": State.DONE.value}
        stored = StoredResult(record, time.time(), conditions)
        await asyncio.to_thread(self._store.add, benchmark.model, stored)
