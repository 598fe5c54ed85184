"""The models in memory, and making room for another one: kept prefixes go first, then whichever model was used longest
ago leaves, once it is idle.

Who loads or unloads stands in `line` first; whoever holds it is the only one to put models in. What is idle, with its
door open, may be taken out at any time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

from omlx.engine.memory import MemoryGuard
from omlx.engine.thread import EngineThread
from omlx.engine.types import Load
from omlx.errors import EngineDead, ModelError
from omlx.models.catalog.entry import ModelEntry
from omlx.models.pool.cost_file import CostFiles
from omlx.models.pool.footprint import release_memory
from omlx.models.pool.load import ModelLoader
from omlx.models.pool.load_weights import Dtype, LoadedWeights, LoadProgress
from omlx.models.pool.resident import ResidentModel

T = TypeVar("T")

GRACE_S: Final = 1.0
"""How long a model whose last request has ended may take to be idle."""

_STEPS: Final = 16
"""How many steps kept prefixes may take to go."""


class ResidentModels:
    """`memory` is told what is in memory, and `limit` what may be taken, in bytes, as the settings have it."""

    def __init__(
        self,
        engine: EngineThread,
        opener: ModelLoader,
        memory: MemoryGuard,
        limit: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:
        self.lock = asyncio.Lock()
        self._engine = engine
        self._opener = opener
        self._memory = memory
        self._limit = limit
        self._told = memory.limit
        self._clock = clock
        self._by_id: dict[str, ResidentModel] = {}
        self._read: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[ResidentModel]:
        """The one that was used last comes last."""
        return iter(sorted(self._by_id.values(), key=lambda each: each.used_at))

    def __len__(self) -> int:
        return len(self._by_id)

    def find(self, model: str) -> ResidentModel | None:
        return self._by_id.get(model)

    def held(self, entry: ModelEntry, dtype: Dtype) -> LoadedWeights | None:
        """The weights of a model, whether it is in memory for itself or as a draft of others."""
        held = (each.weights.get(entry.path) for each in self if each.dtype == dtype)
        return next((weights for weights in held if weights is not None), None)

    # -- in and out ----------------------------------------------------------------------------------------------

    def put(self, resident: ResidentModel) -> None:
        """In place of the one of the same model, if there is one. In line."""
        self._by_id[resident.entry.id] = resident
        relieve = partial(self._relieve, asyncio.get_running_loop())
        self._post(partial(self._memory.evict_models_by, relieve))
        self.account()

    async def evict(self, resident: ResidentModel) -> None:
        """Take out one that is idle, if it is still there. From now on whoever wants it has it loaded again."""
        if self._by_id.get(resident.entry.id) is not resident:
            return
        del self._by_id[resident.entry.id]
        closing = _kept(self._opener.close(resident), self._closing)
        closing.add_done_callback(lambda _: self.account())
        await asyncio.shield(closing)

    async def drain(self, resident: ResidentModel) -> None:
        """Take it out when its requests have ended."""
        with resident.drained():
            await resident.idle.wait()
            async with self.lock:
                await resident.idle.wait()
                await self.evict(resident)

    async def sweep(self) -> None:
        """Let go of what has been idle for too long and, over the limit, of prefixes and of what was used longest ago.

        Takes up a limit that was changed.
        """
        self._take_up_limit()
        if self.lock.locked() or not self._by_id:
            return
        async with self.lock:
            now = self._clock()
            for resident in [each for each in self if each.expired(now)]:
                await self.evict(resident)
            if (over := self._memory.used() - self._limit()) > 0:
                await self._give_up_prefixes(over)
            while (
                self._memory.used() > self._limit()
                and (oldest := self._oldest(idle=True)) is not None
            ):
                await self.evict(oldest)

    async def save_costs(self, files: CostFiles) -> None:
        """Save what their passes cost."""
        with suppress(EngineDead):
            for resident in list(self):
                if (now := await self._ask(resident.cost_keeper.now)) is not None:
                    await asyncio.to_thread(files.save, *now)

    # -- room ----------------------------------------------------------------------------------------------------

    async def make_room(self, entry: ModelEntry, need: int) -> None:
        """See to it that `need` more bytes can be taken for a model, and set them aside. In line.

        Raises ModelError, and sends nobody away, if what is pinned leaves too little for good; Overloaded if requests
        of those leave too little now.
        """
        self._take_up_limit()
        staying = _size(each for each in self if each.pinned or each.entry.id == entry.id)
        if need and need + staying > await self._ask(lambda: self._memory.hard):
            raise _no_room(entry, need, self._limit(), staying)
        while need and (over := await self._ask(partial(self._memory.reserve, need))):
            if self._closing:
                await asyncio.wait(self._closing)
            elif not await self._give_up_prefixes(over):
                oldest = self._oldest(idle=True, but=entry) or self._oldest(idle=False, but=entry)
                if oldest is None:
                    break
                with oldest.drained():
                    await oldest.idle.wait()
                    await self.evict(oldest)
        if need and await self._ask(partial(self._memory.reserve, need, last=True)):
            used = self._memory.used()
            busy = any(each.leases for each in self if each.entry.id != entry.id)
            raise self._memory.refusal(need) if busy else _no_room(entry, need, self._limit(), used)

    def use_reservation(self, entry: ModelEntry, progress: LoadProgress) -> None:
        """Some of what room was made for is in memory now."""
        before = self._read.get(entry.id, 0)
        self._read[entry.id] = progress.done
        self._post(partial(self._memory.use_reservation, progress.done - before))

    def cancel_reservation(self) -> None:
        """Whatever room was made for is there, or will not come."""
        self._read.clear()
        self._post(self._memory.cancel_reservation)

    def account(self) -> None:
        """Tell the guard what is in memory, and every model what its prefixes may take.

        Unless somebody says how much, that is half of what all weights leave below the soft limit, in equal parts:
        prefixes are given up first when memory is short.
        """
        memory = self._memory
        limit = self._told = self._limit()
        pinned = [each for each in self if each.pinned]
        each_of, weights = list(self), _size(self)
        floors = [_size([each, *pinned]) for each in each_of]
        given = [each.settings.prefix_bytes for each in each_of]

        def tell() -> None:
            memory.configure(limit, weights)
            spare = max(0, memory.soft - weights) // 2 // max(1, len(each_of))
            for resident, floor, own in zip(each_of, floors, given, strict=True):
                resident.loop.bound_memory(floor, spare if own is None else own)

        self._post(tell)

    def _take_up_limit(self) -> None:
        if self._limit() != self._told:
            self.account()

    async def _give_up_prefixes(self, nbytes: int) -> bool:
        """Have kept prefixes go, and their memory be given back; whether there were any."""
        if not await self._ask(partial(self._memory.evict_prefixes, nbytes)):
            return False
        for _ in range(_STEPS):
            if not await self._ask(lambda: self._memory.freeing):  # comes between two steps
                break
        await self._ask(release_memory)
        return True

    def _relieve(self, loop: asyncio.AbstractEventLoop, nbytes: int) -> None:
        """On the engine thread: have idle models leave for requests that wait for memory."""
        try:
            loop.call_soon_threadsafe(lambda: _kept(self._send_idle_away(nbytes), self._tasks))
        except RuntimeError:  # the event loop is closed: nobody can leave any more
            self._memory.eviction_done()

    async def _send_idle_away(self, nbytes: int) -> None:
        goal = self._memory.used() - nbytes
        try:
            async with asyncio.timeout(GRACE_S):
                while self._memory.used() > goal:
                    if (oldest := self._oldest(idle=True, open_only=True)) is not None:
                        await self.evict(oldest)
                    elif not await self._somebody_idle():
                        return
        except (TimeoutError, EngineDead):
            pass
        finally:
            self._post(self._memory.eviction_done)

    async def _somebody_idle(self) -> bool:
        """Wait for a model that has no requests any more but for their last words. Whether there is one."""
        ending = [each for each in self if not each.pinned and each.leases and not each.draining]
        ending = [each for each in ending if self._engine.load_of(each.entry.id) == Load(0, 0, 0)]
        waits = [asyncio.ensure_future(each.idle.wait()) for each in ending]
        if not waits:
            return False
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return True

    def _oldest(
        self, *, idle: bool, but: ModelEntry | None = None, open_only: bool = False
    ) -> ResidentModel | None:
        """The one used longest ago that may leave; of the `idle` ones, or of all."""
        able = (each for each in self if not each.pinned and (each.leases == 0 or not idle))
        able = (each for each in able if not (open_only and each.draining))
        return next((each for each in able if but is None or each.entry.id != but.id), None)

    def _post(self, work: Callable[[], None]) -> None:
        """Run `work` on the engine thread, the one that may write to the guard, unless it has ended."""
        with suppress(EngineDead):
            self._engine.call(work)

    async def _ask(self, work: Callable[[], T]) -> T:
        """On the engine thread."""
        return await asyncio.wrap_future(self._engine.call(work))


def _size(residents: Iterable[ResidentModel]) -> int:
    """Bytes of their weights, each counted once."""
    return sum(
        {id(held): held.size_bytes for each in residents for held in each.weights.values()}.values()
    )


def _no_room(entry: ModelEntry, need: int, limit: int, used: int) -> ModelError:
    sizes = {
        "need_gb": round(need / 1e9, 2),
        "limit_gb": round(limit / 1e9, 2),
        "used_gb": round(used / 1e9, 2),
    }
    return ModelError("model.no_room", param="model", model=entry.id, **sizes)


def _kept(work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> asyncio.Task[None]:
    """A task that is not forgotten before it is done."""
    task = asyncio.create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task
