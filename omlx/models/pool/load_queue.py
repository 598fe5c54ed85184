"""Models on their way into memory: one task a model, whoever waits for it, and one after another."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from omlx.errors import ModelError
from omlx.models.catalog.entry import ModelEntry
from omlx.models.pool.eviction import Residents
from omlx.models.pool.failure_cache import Circumstances, Refusals
from omlx.models.pool.load import Opener, choose
from omlx.models.pool.loader import LoadProgress
from omlx.models.pool.resident import Loading, Resident
from omlx.models.pool.speculative import Speculative

log = logging.getLogger("omlx.models")


class Loadings:
    """`configured` says how a model is to be drafted for, as settings and packages are now."""

    def __init__(
        self,
        residents: Residents,
        opener: Opener,
        configured: Callable[[ModelEntry], Speculative],
        clock: Callable[[], float],
    ) -> None:
        self._residents = residents
        self._opener = opener
        self._configured = configured
        self._clock = clock
        self._refusals = Refusals()
        self._loading: dict[tuple[str, str | None, bool], Loading] = {}

    def of(self, model: str) -> list[Loading]:
        """What is under way for a model, by its id."""
        return [loading for loading in self._loading.values() if loading.entry.id == model]

    @property
    def requests(self) -> int:
        """How many wait, a model that nobody waits for counting as one."""
        return sum(max(1, len(loading.waiters)) for loading in self._loading.values())

    def settings_changed(self) -> None:
        """What is under way may have read them before."""
        for loading in self._loading.values():
            loading.outdated = True

    async def cancel(self, model: str) -> None:
        """Stop what is under way, unless it is as good as done. Those who wait for it hear so."""
        tasks = [loading.task for loading in self.of(model) if loading.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def begin(self, loading: Loading) -> Loading:
        """Join those who wait for the same, or be the first."""
        begun = self._loading.get(loading.key)
        if begun is None or begun.task is None or begun.task.cancelling():
            begun = self._loading[loading.key] = loading
            begun.task = asyncio.create_task(self._run(begun))
        begun.kept |= loading.kept
        return begun

    async def _run(self, loading: Loading) -> None:
        """Whatever comes of it, nobody waits in vain."""
        try:
            await (
                self._bring(loading)
                if loading.wanted is None
                else self._bring_with(loading, loading.wanted)
            )
        except asyncio.CancelledError:
            loading.fail(ModelError("model.load_cancelled", param="model", model=loading.entry.id))
        except Exception as error:  # noqa: BLE001 — the edge of a task; each of those who wait raises it
            if not loading.waiters:
                log.warning(
                    "not loaded",
                    extra={"fields": {"model": loading.entry.id, "detail": str(error)}},
                )
            loading.fail(error)
        finally:
            if self._loading.get(loading.key) is loading:
                del self._loading[loading.key]
            if loading.outdated and self._residents.find(loading.entry.id) is not None:
                self.begin(Loading(loading.entry, again=True))

    async def _bring_with(self, loading: Loading, draft: ModelEntry) -> None:
        """With the draft that a request names, unless it is known that this cannot be."""

        def look() -> Circumstances:
            return Circumstances.now(loading.entry, draft, self._configured(loading.entry).settings)

        with self._refusals.remembered(await asyncio.to_thread(look)):
            await self._bring(loading)

    async def _bring(self, loading: Loading) -> None:
        resident = self._residents.find(loading.entry.id)
        if resident is None or (resident.has(loading.wanted) and not loading.again):
            async with self._residents.line:
                await self._open(loading)
            return
        if loading.again:
            await resident.idle_moment()
        with resident.door_closed():
            await resident.idle.wait()  # before standing in line: it may take long
            async with self._residents.line:
                await self._open(loading)

    async def _open(self, loading: Loading) -> None:
        """Its turn in line has come; what is in memory may have changed meanwhile."""
        resident = self._residents.find(loading.entry.id)
        if resident is not None and resident.has(loading.wanted) and not loading.again:
            loading.grant(resident, self._clock)
        elif resident is not None:
            with resident.door_closed():
                await resident.idle.wait()
                await self._read(loading, resident)
        elif not loading.again:
            await self._read(loading, None)

    async def _read(self, loading: Loading, resident: Resident | None) -> None:
        """In place of what is in memory, if anything is, which must be idle."""
        entry = loading.entry
        loading.outdated = False
        configured = await asyncio.to_thread(self._configured, entry)
        choice = await asyncio.to_thread(
            choose, entry, configured, loading.wanted, self._residents.held
        )
        if resident is not None and resident.dtype != configured.settings.dtype:
            await self._residents.evict(resident)
            resident = None

        async def make_room(need: int) -> None:
            await self._residents.make_room(entry, need)

        def progress(read: ModelEntry, done: LoadProgress) -> None:
            loading.begun = loading.begun or done.done > 0
            if done.done:
                self._residents.came(read, done)
            if read.id == entry.id:
                loading.progress = done

        try:
            opened = await self._opener.open(
                choice, resident, self._residents.held, make_room, progress, self._clock()
            )
            self._residents.put(opened)
        finally:
            self._residents.nobody_comes()
        loading.grant(opened, self._clock)
