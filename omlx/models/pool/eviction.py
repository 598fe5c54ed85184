"""Resident models, their memory budgets, and LRU eviction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from omlx.engine.disk.tier import DiskCache
from omlx.engine.memory import MemoryGuard
from omlx.engine.thread import EngineThread
from omlx.engine.types import RequestCounts
from omlx.errors import Conflict, EngineDead, ModelError, Reason
from omlx.models.catalog.registry import ModelEntry
from omlx.models.catalog.tokenizer import read_tokenizer
from omlx.models.pool.cost_store import CostStore
from omlx.models.pool.footprint import release_memory
from omlx.models.pool.load_weights import LoadedModel
from omlx.models.pool.loader import ModelLoader
from omlx.models.pool.opening import Dtype, LoadProgress
from omlx.models.pool.served import ResidentModel
from omlx.text.tokens import Tokenizer

T = TypeVar("T")

GRACE_S: Final = 1.0
"""Seconds — time for a model to become idle after the last generated token."""

_SHRINK_STEPS: Final = 16
"""Engine steps — limit for prefix caches to free memory."""


@dataclass(slots=True, eq=False)
class ResidentModels:
    """Loaded models, iterated from the least to the most recently used.

    Only the holder of `lock` adds a model. An idle model that is not draining may be evicted at any
    time. `limit` returns the configured memory limit in bytes, `apply_limit` passes it to MLX.
    """

    _engine: EngineThread
    _loader: ModelLoader
    _memory: MemoryGuard
    _limit: Callable[[], int]
    _apply_limit: Callable[[int], None]
    _published_limit: int | None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    closing: set[asyncio.Task[None]] = field(default_factory=set)
    _by_id: dict[str, ResidentModel] = field(default_factory=dict)
    _holds: dict[str, Reason] = field(default_factory=dict)

    def __iter__(self) -> Iterator[ResidentModel]:
        return iter(sorted(self._by_id.values(), key=lambda resident: resident.used_at))

    def __len__(self) -> int:
        return len(self._by_id)

    def find(self, model: str) -> ResidentModel | None:
        return self._by_id.get(model)

    def weights_of(self, entry: ModelEntry, dtype: Dtype) -> LoadedModel | None:
        """Return the weights of a resident target or draft; None if not in memory."""
        for resident in self:
            if resident.dtype == dtype and entry.path in resident.weights:
                return resident.weights[entry.path]
        return None

    def tokenizer_of(self, entry: ModelEntry, dtype: Dtype) -> Tokenizer:
        """Return a model's tokenizer, from memory or read from disk."""
        loaded = self.weights_of(entry, dtype)
        return loaded.tokenizer if loaded is not None else read_tokenizer(entry)

    def put(self, resident: ResidentModel) -> None:
        """Add a model, replacing any with the same id. Call with `lock` held."""
        self._by_id[resident.entry.id] = resident
        self.update_budgets()

    def keep(self, model: str, seconds: float) -> None:
        """Set the idle time-out of a resident model in seconds; infinity for none.

        Pinned and absent models are unaffected.
        """
        resident = self.find(model)
        if resident is not None:
            resident.keep_s = seconds

    async def evict(self, resident: ResidentModel) -> None:
        """Remove an idle model, if still resident; a new request loads it again."""
        if self._by_id.get(resident.entry.id) is not resident:
            return
        del self._by_id[resident.entry.id]
        closing = background(self._loader.close(resident), self.closing)
        closing.add_done_callback(lambda _: self.update_budgets())
        await asyncio.shield(closing)

    async def unload(self, resident: ResidentModel) -> None:
        with resident.drain():
            await resident.idle.wait()
            async with self.lock:
                await resident.idle.wait()
                await self.evict(resident)

    @contextmanager
    def hold(self, model: str, reason: Reason) -> Iterator[None]:
        """Refuse to unload a model inside the block, with code and parameters of `reason`.

        The model need not be in memory. Eviction is not affected.
        """
        self._holds[model] = reason
        try:
            yield
        finally:
            del self._holds[model]

    def check_unload(self, model: str, *, if_idle: bool) -> None:
        """Raise Conflict if a model is held or, with `if_idle`, in use by requests."""
        reason, resident = self._holds.get(model), self._by_id.get(model)
        if reason is not None:
            raise Conflict(reason.code, param=None, **reason.params)
        if if_idle and resident is not None and resident.leases:
            raise Conflict("model.in_use", model=model, active=resident.leases)

    async def remove_prefixes(self, model: str) -> None:
        """Delete from disk the prefixes of a model that is not loaded."""
        if isinstance(self._loader.disks, DiskCache):
            await asyncio.to_thread(self._loader.disks.remove, model)

    async def save_costs(self, files: CostStore) -> None:
        with suppress(EngineDead):
            for resident in list(self):
                record = await asyncio.wrap_future(self._engine.call(resident.costs.record))
                if record is not None:
                    await asyncio.to_thread(files.save, *record)

    def update_budgets(self) -> None:
        """Publish weights to the memory guard, and budgets of prefix caches to models.

        Unless configured, prefix caches share equally half of the memory between all weights and
        the soft limit; they shrink first when memory is short.
        """
        memory = self._memory
        limit = self._published_limit = self._limit()
        residents, weights = list(self), weights_bytes(self)
        pinned = [resident for resident in residents if resident.pinned]
        pinned_weights = [weights_bytes([resident, *pinned]) for resident in residents]
        configured = [resident.settings.prefix_bytes for resident in residents]

        def publish() -> None:
            memory.configure(limit, weights)
            self._apply_limit(limit)
            share = max(0, memory.soft - weights) // 2 // max(1, len(residents))
            for resident, floor, own in zip(residents, pinned_weights, configured, strict=True):
                resident.loop.set_memory_budget(floor, share if own is None else own)

        self.post(publish)

    def check_limit(self) -> None:
        if self._limit() != self._published_limit:
            self.update_budgets()

    def post(self, work: Callable[[], None]) -> None:
        """Run `work` on the engine thread, writer of the guard, unless ended."""
        with suppress(EngineDead):
            self._engine.call(work)


def weights_bytes(residents: Iterable[ResidentModel]) -> int:
    """Return the bytes of all weights, shared weights counted once."""
    sizes: dict[int, int] = {}
    for resident in residents:
        for weights in resident.weights.values():
            sizes[id(weights)] = weights.size_bytes
    return sum(sizes.values())


def background(
    work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]
) -> asyncio.Task[None]:
    """Start a task; `tasks` keeps it referenced until done."""
    task = asyncio.create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task


@dataclass(slots=True, eq=False)
class Evictor:
    """Eviction for weights and for requests. `limit` returns the configured limit in bytes."""

    _engine: EngineThread
    _residents: ResidentModels
    _memory: MemoryGuard
    _limit: Callable[[], int]
    _clock: Callable[[], float]
    _bytes_read: dict[str, int] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

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
            while self._memory.used() > self._limit() and (oldest := self._oldest(idle=True)):
                await self._residents.evict(oldest)

    # -- room for weights --------------------------------------------------------------------------

    async def make_room(self, entry: ModelEntry, nbytes: int) -> None:
        """Reserve `nbytes` for the weights of a model. Call with the residents' lock held.

        Evicts as little as possible: prefixes, idle models, then models after draining. Raises
        ModelError before any eviction if pinned models leave too little permanently; Overloaded if
        requests of pinned models leave too little now.
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
        """Count newly read bytes as used instead of reserved."""
        before = self._bytes_read.get(entry.id, 0)
        self._bytes_read[entry.id] = progress.done
        self._residents.post(partial(self._memory.use_reservation, progress.done - before))

    def cancel_reservation(self) -> None:
        """Release the remaining reservation: the model is loaded, or will not be."""
        self._bytes_read.clear()
        self._residents.post(self._memory.cancel_reservation)

    async def _shrink_prefix_caches(self, nbytes: int) -> bool:
        """Evict prefixes and return their memory to the system; False without prefixes."""
        if not await self._on_engine(partial(self._memory.evict_prefixes, nbytes)):
            return False
        for _ in range(_SHRINK_STEPS):
            if not await self._on_engine(lambda: self._memory.freeing):  # runs between two steps
                break
        await self._on_engine(release_memory)
        return True

    # -- room for requests -------------------------------------------------------------------------

    def _on_eviction_request(self, loop: asyncio.AbstractEventLoop, nbytes: int) -> None:
        """Evict idle models for requests waiting for memory. Called on the engine thread."""

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
        """Wait until a model with finished engine requests is idle; False without such a model."""
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

        `idle`: exclude models with active requests; `draining`: include draining models.
        """
        for resident in self._others(spare):
            busy = resident.leases and idle
            if not resident.pinned and not busy and (draining or not resident.draining):
                return resident
        return None

    def _others(self, entry: ModelEntry | None) -> list[ResidentModel]:
        """Return the residents except `entry`, the least recently used first."""
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
