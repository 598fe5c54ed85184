"""LRU eviction: prefix caches shrink first, then the least recently used model is drained and
evicted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from omlx.engine.memory.guard import MemoryGuard
from omlx.engine.thread import EngineThread
from omlx.engine.types import RequestCounts
from omlx.errors import EngineDead, ModelError
from omlx.models.catalog.entry import ModelEntry
from omlx.models.pool.footprint import release_memory
from omlx.models.pool.load_weights import LoadProgress
from omlx.models.pool.resident import ResidentModel
from omlx.models.pool.residents import ResidentModels, background, weights_bytes

T = TypeVar("T")

GRACE_S: Final = 1.0
"""Seconds that a model may take to become idle once its last request has no more tokens to send."""

_SHRINK_STEPS: Final = 16
"""Engine steps within which prefix caches give back memory."""


class Evictor:
    """Makes room for weights and for requests. `limit` returns the configured limit in bytes."""

    def __init__(
        self,
        engine: EngineThread,
        residents: ResidentModels,
        memory: MemoryGuard,
        limit: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._residents = residents
        self._memory = memory
        self._limit = limit
        self._clock = clock
        self._bytes_read: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def sweep(self) -> None:
        """Evict models past their idle time-out and, over the limit, prefixes and LRU models."""
        self._residents.check_limit()
        if self._residents.lock.locked() or not len(self._residents):
            return
        async with self._residents.lock:
            now = self._clock()
            for resident in [resident for resident in self._residents if resident.expired(now)]:
                await self._residents.evict(resident)
            excess = self._memory.used() - self._limit()
            if excess > 0:
                await self._shrink_prefix_caches(excess)
            while self._memory.used() > self._limit():
                oldest = self._oldest(idle=True)
                if oldest is None:
                    break
                await self._residents.evict(oldest)

    # -- room for weights --------------------------------------------------------------------------

    async def make_room(self, entry: ModelEntry, nbytes: int) -> None:
        """Reserve `nbytes` for the weights of a model. Call it with the residents' lock held.

        Evicts as little as possible: prefixes, idle models, then models that it drains. Raises
        ModelError, before it evicts anything, if pinned models leave too little for good;
        Overloaded if requests of pinned models leave too little now.
        """
        memory = self._memory
        # Only here is the event loop known: a pool may be built before its loop runs.
        on_request = partial(self._on_eviction_request, asyncio.get_running_loop())
        self._residents.post(partial(memory.set_model_evictor, on_request))
        self._residents.check_limit()
        if not nbytes:
            return
        staying = weights_bytes(
            resident
            for resident in self._residents
            if resident.pinned or resident.entry.id == entry.id
        )
        hard = await self._on_engine(lambda: memory.hard)  # after a new limit is published
        if nbytes + staying > hard:
            raise _no_room(entry, nbytes, self._limit(), staying)
        while True:
            excess = await self._on_engine(partial(memory.reserve, nbytes))
            if not excess or not await self._free(excess, entry):
                break
        if excess and await self._on_engine(partial(memory.reserve, nbytes, last=True)):
            if any(resident.leases for resident in self._others(entry)):
                raise memory.refusal(nbytes)
            raise _no_room(entry, nbytes, self._limit(), memory.used())

    async def _free(self, nbytes: int, entry: ModelEntry) -> bool:
        """Take one step towards `nbytes` of free memory; False if nothing is left to evict."""
        if self._residents.closing:
            await asyncio.wait(self._residents.closing)
            return True
        if await self._shrink_prefix_caches(nbytes):
            return True
        oldest = self._oldest(idle=True, spare=entry) or self._oldest(idle=False, spare=entry)
        if oldest is None:
            return False
        with oldest.drain():
            await oldest.idle.wait()
            await self._residents.evict(oldest)
        return True

    def use_reservation(self, entry: ModelEntry, progress: LoadProgress) -> None:
        """Count bytes that have been read as used instead of reserved."""
        before = self._bytes_read.get(entry.id, 0)
        self._bytes_read[entry.id] = progress.done
        self._residents.post(partial(self._memory.use_reservation, progress.done - before))

    def cancel_reservation(self) -> None:
        """Release what is left of the reservation: the model is loaded, or will not be."""
        self._bytes_read.clear()
        self._residents.post(self._memory.cancel_reservation)

    async def _shrink_prefix_caches(self, nbytes: int) -> bool:
        """Evict prefixes and return their memory to the system; False if there were none."""
        if not await self._on_engine(partial(self._memory.evict_prefixes, nbytes)):
            return False
        for _ in range(_SHRINK_STEPS):
            if not await self._on_engine(lambda: self._memory.freeing):  # runs between two steps
                break
        await self._on_engine(release_memory)
        return True

    # -- room for requests -------------------------------------------------------------------------

    def _on_eviction_request(self, loop: asyncio.AbstractEventLoop, nbytes: int) -> None:
        """Evict idle models for requests that wait for memory. Called on the engine thread."""

        def start() -> None:
            background(self._evict_idle(nbytes), self._tasks)

        try:
            loop.call_soon_threadsafe(start)
        except RuntimeError:  # the event loop is closed: no model can be evicted any more
            self._memory.eviction_done()

    async def _evict_idle(self, nbytes: int) -> None:
        goal = self._memory.used() - nbytes
        try:
            while self._memory.used() > goal:
                oldest = self._oldest(idle=True, draining=False)
                if oldest is not None:
                    await self._residents.evict(oldest)  # however long its memory takes to free
                    continue
                async with asyncio.timeout(GRACE_S):
                    if not await self._wait_for_idle_model():
                        return
        except (TimeoutError, EngineDead):
            pass
        finally:
            self._residents.post(self._memory.eviction_done)

    async def _wait_for_idle_model(self) -> bool:
        """Wait for a model whose requests have finished in the engine; False if there is none."""
        ending = [
            resident
            for resident in self._residents
            if not resident.pinned
            and resident.leases
            and not resident.draining
            and self._engine.request_counts(resident.entry.id) == RequestCounts(0, 0, 0)
        ]
        if not ending:
            return False
        waits = [asyncio.ensure_future(resident.idle.wait()) for resident in ending]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return True

    # -- choice ------------------------------------------------------------------------------------

    def _oldest(
        self, *, idle: bool, spare: ModelEntry | None = None, draining: bool = True
    ) -> ResidentModel | None:
        """Return the least recently used model that may be evicted.

        `idle`: only one without active requests; `draining`: also one that is draining.
        """
        for resident in self._others(spare):
            busy = resident.leases and idle
            if not resident.pinned and not busy and (draining or not resident.draining):
                return resident
        return None

    def _others(self, entry: ModelEntry | None) -> list[ResidentModel]:
        """Return all residents but this one, the least recently used first."""
        residents = list(self._residents)
        if entry is None:
            return residents
        return [resident for resident in residents if resident.entry.id != entry.id]

    async def _on_engine(self, work: Callable[[], T]) -> T:
        return await asyncio.wrap_future(self._engine.call(work))


def _no_room(entry: ModelEntry, nbytes: int, limit: int, used: int) -> ModelError:
    sizes = {
        "need_gb": round(nbytes / (1 << 30), 2),
        "limit_gb": round(limit / (1 << 30), 2),
        "used_gb": round(used / (1 << 30), 2),
    }
    return ModelError("model.no_room", param="model", model=entry.id, **sizes)
