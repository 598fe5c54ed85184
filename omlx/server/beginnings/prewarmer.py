"""Prewarming: computes returning beginnings of prompts while the server is idle.

    idle, on mains power, budget left ─► tokens of a beginning ─► a request in the background
    any other request ─► cancelled at the next chunk; computed tokens stay in the prefix cache

A beginning in the prefix cache on disk is restored from there, in a fraction of the time.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from omlx.engine.thread import EngineThread
from omlx.engine.types import (
    Event,
    Failed,
    Finished,
    FinishReason,
    PrefillProgress,
    Request,
)
from omlx.errors import BadRequest, EngineDead, OmlxError, Overloaded, Reason
from omlx.models.pool.pool import Pool
from omlx.models.pool.served import ResidentModel, State
from omlx.power import on_mains
from omlx.records import BeginningStats
from omlx.server.beginnings.store import BeginningStore, Known
from omlx.settings.schema import Settings

if TYPE_CHECKING:
    from omlx.engine.loop import EngineLoop

IDLE_S: Final = 1.0
"""Seconds without any request before a beginning is computed."""

MAX_BEGINNINGS: Final = 8
"""Per model, the most recently used first."""

BUDGET_S: Final = 120.0
"""Seconds of computing per load of a model."""

POWER_S: Final = 30.0
"""Seconds until a machine on battery is checked for mains power again."""

BATTERY: Final = Reason("prewarm.paused.battery")
BUDGET: Final = Reason("prewarm.paused.budget", {"seconds": int(BUDGET_S)})
REQUESTS: Final = Reason("prewarm.paused.requests")
SETTING: Final = Reason("prewarm.paused.setting")

log = logging.getLogger("omlx.prefix")


@dataclass(slots=True)
class Work:
    """Progress for a loaded model, by keys of beginnings.

    tokens: tokenized beginnings. done: keys that are cached or cannot be. spent_s: time used.
    computed: tokens computed.
    """

    tokens: dict[str, tuple[int, ...]] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    spent_s: float = 0.0
    computed: int = 0

    @property
    def left_s(self) -> float:
        return max(0.0, BUDGET_S - self.spent_s)


class Prewarmer:
    """Runs on the event loop. `power` returns whether the machine is on mains (blocking)."""

    def __init__(
        self,
        engine: EngineThread,
        pool: Pool,
        store: BeginningStore,
        settings: Callable[[], Settings],
        power: Callable[[], bool] = on_mains,
    ) -> None:
        self.store = store
        self._engine = engine
        self._pool = pool
        self._settings = settings
        self._power = power
        self._on_battery_until = 0.0
        self._obstacle: Reason | None = None
        """Reason why nothing was computed at the last attempt."""
        self._work: WeakKeyDictionary[EngineLoop, Work] = WeakKeyDictionary()

    async def run_every(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                await self.run()
            except EngineDead:
                return
            except Exception:  # the edge of a background task
                log.exception("beginnings of prompts not computed")

    async def run(self) -> None:
        """Compute beginnings until all are done or the server is no longer idle."""
        for resident in self._pool.residents:
            work = self._work.setdefault(resident.loop, Work())
            for known in self.returning(resident.entry.id):
                if known.beginning.key in work.done or not work.left_s:
                    continue
                self._obstacle = await self._find_obstacle()
                if self._obstacle is not None:
                    return
                await self._compute(resident, work, known)

    def returning(self, model: str) -> Sequence[Known]:
        """Return the beginnings of a model that are candidates for prewarming."""
        return self.store.returning(model)[:MAX_BEGINNINGS]

    def stats(self) -> dict[str, BeginningStats]:
        return {resident.entry.id: self._stats(resident) for resident in self._pool.residents}

    def _stats(self, resident: ResidentModel) -> BeginningStats:
        work = self._work.get(resident.loop, Work())
        returning = self.returning(resident.entry.id)
        done = sum(one.beginning.key in work.done for one in returning)
        paused = None
        if done < len(returning):
            paused = self._obstacle if work.left_s else BUDGET
        return BeginningStats(
            done=done,
            waiting=len(returning) - done,
            computed_tokens=work.computed,
            budget_left_s=work.left_s,
            paused=paused,
        )

    async def known(self, model: str) -> list[tuple[Known, tuple[int, ...]]]:
        """Return the beginnings of a loaded model with their tokens.

        Leaves out beginnings rejected by the chat template.
        """
        resident, found = self._pool.residents.find(model), []
        if resident is not None:
            for known in self.returning(model):
                with suppress(BadRequest):
                    found.append((known, await self._tokens(resident, known)))
        return found

    async def _tokens(self, resident: ResidentModel, known: Known) -> tuple[int, ...]:
        tokens, served = self._work.setdefault(resident.loop, Work()).tokens, resident.served
        key = known.beginning.key
        if key not in tokens:
            read = partial(known.beginning.tokens, served.tokenizer, served.context_length)
            tokens[key] = await asyncio.to_thread(read)
        return tokens[key]

    async def forget(self, model: str) -> None:
        """Delete a model's beginnings, in memory and on disk."""
        resident = self._pool.residents.find(model)
        if resident is not None:
            self._work.pop(resident.loop, None)
        await asyncio.to_thread(self.store.forget, model)

    async def _find_obstacle(self) -> Reason | None:
        """Return the reason that forbids prewarming now; None if nothing does."""
        mode = self._settings().prewarm
        if mode == "off":
            return SETTING
        if mode == "mains" and await self._on_battery():
            return BATTERY
        return None if self._idle() else REQUESTS

    async def _on_battery(self) -> bool:
        clock = asyncio.get_running_loop().time
        if clock() >= self._on_battery_until and not await asyncio.to_thread(self._power):
            self._on_battery_until = clock() + POWER_S  # ask rarely: a process is started for it
        return clock() < self._on_battery_until

    def _idle(self) -> bool:
        """Whether no request came and no model was loaded for `IDLE_S`."""
        if self._pool.load_queue.requests:
            return False
        statuses = [self._pool.status(resident.entry.id) for resident in self._pool.residents]
        return all(
            status.state is State.READY and status.idle_s is not None and status.idle_s >= IDLE_S
            for status in statuses
        )

    def _alone(self) -> bool:
        """Whether the prewarming request is the only one."""
        residents = [*self._pool.residents]
        if self._pool.load_queue.requests or any(resident.draining for resident in residents):
            return False
        leases: int = sum(resident.leases for resident in residents)
        return leases <= 1

    async def _compute(self, resident: ResidentModel, work: Work, known: Known) -> None:
        """Compute a beginning into the prefix cache; an interrupted one is retried later."""
        key, served = known.beginning.key, resident.served
        clock = asyncio.get_running_loop().time
        started, lease = clock(), await self._pool.lease(served.id)
        try:
            tokens = await self._tokens(resident, known)
            if await self._fill(served.id, tokens, work, started + work.left_s):
                work.done.add(key)
        except OmlxError as error:  # no other attempt can do better
            work.done.add(key)
            fields = {"model": served.id, "detail": error.message}
            log.warning("a beginning of prompts was not computed", extra={"fields": fields})
        finally:
            work.spent_s += clock() - started
            lease.release()

    async def _fill(self, model: str, tokens: tuple[int, ...], work: Work, deadline: float) -> bool:
        """Compute the tokens missing from the prefix cache, until `deadline` at most.

        Return False if interrupted. Does nothing where memory has no room. Raises OmlxError.
        """
        if not tokens:
            return True
        request = Request(
            id=f"prewarm-{uuid.uuid4().hex}",
            tokens=(*tokens, tokens[-1]),  # the last token of a prompt is not computed
            max_tokens=0,
            stable=len(tokens),
            background=True,
        )
        if not await asyncio.wrap_future(self._engine.may_prefill(model, request)):
            return True
        return await self._run(model, request, work, deadline)

    async def _run(self, model: str, request: Request, work: Work, deadline: float) -> bool:
        """Run a background request, count its computed tokens, return whether it ran to the end."""
        loop, events, reached = asyncio.get_running_loop(), asyncio.Queue[Event](), 0

        def receive(batch: Sequence[Event], /) -> None:
            for event in batch:
                loop.call_soon_threadsafe(events.put_nowait, event)

        self._engine.submit(model, request, receive)
        try:
            while True:
                event = await events.get()
                if isinstance(event, Failed):
                    if isinstance(event.error, Overloaded):
                        return False
                    raise event.error
                if isinstance(event, PrefillProgress):
                    reached = event.done
                if isinstance(event, Finished):
                    work.computed += max(0, reached - event.stats.cached_n)
                    return event.reason is FinishReason.LENGTH
                if not self._alone() or loop.time() > deadline:
                    self._engine.cancel(request.id)
        finally:
            self._engine.cancel(request.id)
