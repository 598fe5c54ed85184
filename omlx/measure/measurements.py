"""The server's measurements: one at a time, started, stopped, and stored when done."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import TypeVar

from omlx.errors import Conflict, OmlxError, Reason
from omlx.measure.results import Conditions, ResultStore
from omlx.measure.runner import Measurement, Runner, State
from omlx.models.pool.pool import Pool
from omlx.server.http.errors import unexpected

Plan = TypeVar("Plan", bound=Measurement)

log = logging.getLogger("omlx.measure")


class Measurements:
    """One measurement at a time, on the event loop.

    Two at once would each pause for the other's requests as if a user had sent them.
    """

    def __init__(self, pool: Pool, runner: Runner, store: ResultStore) -> None:
        self._pool = pool
        self._runner = runner
        self._newest: dict[type[Measurement], Measurement] = {}
        self._task: asyncio.Task[None] | None = None
        self.store = store

    def newest(self, plan: type[Plan]) -> Plan | None:
        """Return the newest measurement of a plan in this process, running or finished."""
        found = self._newest.get(plan)
        return found if isinstance(found, plan) else None

    def running(self, plan: type[Plan]) -> Plan | None:
        newest = self.newest(plan)
        return newest if newest is not None and not newest.state.over else None

    def begin(self, measurement: Measurement) -> None:
        """Start a measurement. Raises Conflict while another runs."""
        for other in self._newest.values():
            if not other.state.over:
                raise Conflict(other.RUNNING, model=other.model)
        self._newest[type(measurement)] = measurement
        self._task = asyncio.create_task(self._run(measurement))

    async def stop(self, running: Measurement) -> None:
        """Cancel the running measurement; returns once stopped."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])
        if not running.state.over:  # cancelled before it began to run
            running.enter(State.CANCELLED)

    async def conditions(self, models: Iterable[str]) -> Conditions:
        """Return the current conditions of `models`; ids missing from the registry are left out."""
        registry = self._pool.registry
        entries = [registry.get(model) for model in models if model in registry]
        return await asyncio.to_thread(Conditions.now, entries)

    async def _run(self, measurement: Measurement) -> None:
        held = Reason(measurement.HELD, {"model": measurement.model})
        state = State.FAILED
        try:
            # Unloading is refused meanwhile: the model would only be loaded again.
            with self._pool.residents.hold(measurement.model, held):
                await measurement.prepare(self._runner)
                # Taken first, so that weights changed meanwhile make the result stale.
                conditions = await self.conditions(measurement.models)
                await measurement.measure(self._runner)
                save = measurement.save
                await asyncio.to_thread(save, self.store, time.time(), conditions)
            state = State.DONE
        except asyncio.CancelledError:
            state = State.CANCELLED
            raise
        except OmlxError as error:
            measurement.reason = Reason(error.code, error.params)
        except Exception as error:  # the edge of a background task
            log.exception("measurement")
            failure = unexpected(error)
            measurement.reason = Reason(failure.code, failure.params)
        finally:
            measurement.enter(state)
