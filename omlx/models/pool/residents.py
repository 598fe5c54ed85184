"""The models in memory, and the memory budgets that follow from their weights."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from omlx.engine.memory.guard import MemoryGuard
from omlx.engine.thread import EngineThread
from omlx.errors import Conflict, EngineDead, Reason
from omlx.models.catalog.entry import ModelEntry
from omlx.models.pool.cost_file import CostFiles
from omlx.models.pool.load_weights import Dtype, LoadedModel
from omlx.models.pool.loader import ModelLoader
from omlx.models.pool.resident import ResidentModel


class ResidentModels:
    """Loaded models, iterated from the least to the most recently used.

    Only the holder of `lock` adds a model. An idle model that is not draining may be evicted at any
    time. `limit` returns the configured memory limit in bytes, `apply_limit` tells MLX of it.
    """

    def __init__(
        self,
        engine: EngineThread,
        loader: ModelLoader,
        memory: MemoryGuard,
        limit: Callable[[], int],
        apply_limit: Callable[[int], None],
    ) -> None:
        self.lock = asyncio.Lock()
        self.closing: set[asyncio.Task[None]] = set()
        self._engine = engine
        self._loader = loader
        self._memory = memory
        self._limit = limit
        self._apply_limit = apply_limit
        self._published_limit = memory.limit
        self._by_id: dict[str, ResidentModel] = {}
        self._holds: dict[str, Reason] = {}

    def __iter__(self) -> Iterator[ResidentModel]:
        return iter(sorted(self._by_id.values(), key=lambda resident: resident.used_at))

    def __len__(self) -> int:
        return len(self._by_id)

    def find(self, model: str) -> ResidentModel | None:
        return self._by_id.get(model)

    def weights_of(self, entry: ModelEntry, dtype: Dtype) -> LoadedModel | None:
        """Return the weights of a model in memory, as a target or as a draft."""
        for resident in self:
            if resident.dtype == dtype and entry.path in resident.weights:
                return resident.weights[entry.path]
        return None

    def put(self, resident: ResidentModel) -> None:
        """Add a model, in place of the one with its id. Call it with `lock` held."""
        self._by_id[resident.entry.id] = resident
        self.update_budgets()

    def keep(self, model: str, seconds: float) -> None:
        """Set the idle time-out of a model, by its id, while it is in memory; infinity for none.

        Pinned models and models that are not in memory stay as they are.
        """
        resident = self.find(model)
        if resident is not None:
            resident.keep_s = seconds

    async def evict(self, resident: ResidentModel) -> None:
        """Remove an idle model, if it is still there; a new request loads it again."""
        if self._by_id.get(resident.entry.id) is not resident:
            return
        del self._by_id[resident.entry.id]
        closing = background(self._loader.close(resident), self.closing)
        closing.add_done_callback(lambda _: self.update_budgets())
        await asyncio.shield(closing)

    async def unload(self, resident: ResidentModel) -> None:
        """Evict a model once it has drained."""
        with resident.drain():
            await resident.idle.wait()
            async with self.lock:
                await resident.idle.wait()
                await self.evict(resident)

    @contextmanager
    def hold(self, model: str, reason: Reason) -> Iterator[None]:
        """Refuse to unload a model inside the block, with the code and parameters of `reason`.

        The model need not be in memory. Eviction is not affected.
        """
        self._holds[model] = reason
        try:
            yield
        finally:
            del self._holds[model]

    def check_unload(self, model: str, *, if_idle: bool) -> None:
        """Raise Conflict if a model is held or, with `if_idle`, if requests use it."""
        reason, resident = self._holds.get(model), self._by_id.get(model)
        if reason is not None:
            raise Conflict(reason.code, param=None, **reason.params)
        if if_idle and resident is not None and resident.leases:
            raise Conflict("model.in_use", model=model, active=resident.leases)

    async def remove_prefixes(self, model: str) -> None:
        """Delete from disk the prefixes of a model that is not loaded."""
        await asyncio.to_thread(self._loader.remove_prefixes, model)

    async def save_costs(self, files: CostFiles) -> None:
        """Save the measured costs of each model."""
        with suppress(EngineDead):
            for resident in list(self):
                record = await asyncio.wrap_future(self._engine.call(resident.costs.record))
                if record is not None:
                    await asyncio.to_thread(files.save, *record)

    def update_budgets(self) -> None:
        """Publish the weights to the memory guard, and to each model the budget of its prefix
        cache.

        Unless configured, prefix caches share equally half of what all weights leave below the soft
        limit; they are the first to shrink when memory is short.
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
        """Publish the memory limit if it has changed."""
        if self._limit() != self._published_limit:
            self.update_budgets()

    def post(self, work: Callable[[], None]) -> None:
        """Run `work` on the engine thread, the only writer of the memory guard, unless it has
        ended.
        """
        with suppress(EngineDead):
            self._engine.call(work)


def weights_bytes(residents: Iterable[ResidentModel]) -> int:
    """Return the bytes of their weights, shared ones counted once."""
    sizes: dict[int, int] = {}
    for resident in residents:
        for weights in resident.weights.values():
            sizes[id(weights)] = weights.size_bytes
    return sum(sizes.values())


def background(
    work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]
) -> asyncio.Task[None]:
    """Start a task; `tasks` keeps it referenced until it is done."""
    task = asyncio.create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task
