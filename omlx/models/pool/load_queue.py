"""Models on their way into memory: one task a model, whoever waits for it, and one after another."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from omlx.errors import ModelError
from omlx.models.catalog.entry import ModelEntry
from omlx.models.pool.eviction import ResidentModels
from omlx.models.pool.failure_cache import FailureCache, FailureKey
from omlx.models.pool.load import ModelLoader, choose
from omlx.models.pool.load_weights import LoadProgress
from omlx.models.pool.resident import LoadJob, ResidentModel
from omlx.models.pool.speculation_config import SpeculationConfig

log = logging.getLogger("omlx.models")


class LoadQueue:
    """`configured` says how a model is to be drafted for, as settings and packages are now."""

    def __init__(
        self,
        residents: ResidentModels,
        opener: ModelLoader,
        configured: Callable[[ModelEntry], SpeculationConfig],
        clock: Callable[[], float],
    ) -> None:
        self._residents = residents
        self._opener = opener
        self._configured = configured
        self._clock = clock
        self._refusals = FailureCache()
        self._loading: dict[tuple[str, str | None, bool], LoadJob] = {}

    def of(self, model: str) -> list[LoadJob]:
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

    def begin(self, loading: LoadJob) -> LoadJob:
        """Join those who wait for the same, or be the first."""
        begun = self._loading.get(loading.key)
        if begun is None or begun.task is None or begun.task.cancelling():
            begun = self._loading[loading.key] = loading
            begun.task = asyncio.create_task(self._run(begun))
        begun.kept |= loading.kept
        return begun

    async def _run(self, loading: LoadJob) -> None:
        """Whatever comes of it, nobody waits in vain."""
        try:
            await (
                self._bring(loading)
                if loading.requested_draft is None
                else self._bring_with(loading, loading.requested_draft)
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
                self.begin(LoadJob(loading.entry, again=True))

    async def _bring_with(self, loading: LoadJob, draft: ModelEntry) -> None:
        """With the draft that a request names, unless it is known that this cannot be."""

        def look() -> FailureKey:
            return FailureKey.now(loading.entry, draft, self._configured(loading.entry).settings)

        with self._refusals.remembered(await asyncio.to_thread(look)):
            await self._bring(loading)

    async def _bring(self, loading: LoadJob) -> None:
        resident = self._residents.find(loading.entry.id)
        if resident is None or (resident.has(loading.requested_draft) and not loading.again):
            async with self._residents.lock:
                await self._open(loading)
            return
        if loading.again:
            await resident.wait_idle()
        with resident.drained():
            await resident.idle.wait()  # before standing in line: it may take long
            async with self._residents.lock:
                await self._open(loading)

    async def _open(self, loading: LoadJob) -> None:
        """Its turn in line has come; what is in memory may have changed meanwhile."""
        resident = self._residents.find(loading.entry.id)
        if resident is not None and resident.has(loading.requested_draft) and not loading.again:
            loading.grant(resident, self._clock)
        elif resident is not None:
            with resident.drained():
                await resident.idle.wait()
                await self._read(loading, resident)
        elif not loading.again:
            await self._read(loading, None)

    async def _read(self, loading: LoadJob, resident: ResidentModel | None) -> None:
        """In place of what is in memory, if anything is, which must be idle."""
        entry = loading.entry
        loading.outdated = False
        configured = await asyncio.to_thread(self._configured, entry)
        choice = await asyncio.to_thread(
            choose, entry, configured, loading.requested_draft, self._residents.held
        )
        if resident is not None and resident.dtype != configured.settings.dtype:
            await self._residents.evict(resident)
            resident = None

        async def make_room(need: int) -> None:
            await self._residents.make_room(entry, need)

        def progress(read: ModelEntry, done: LoadProgress) -> None:
            loading.begun = loading.begun or done.done > 0
            if done.done:
                self._residents.use_reservation(read, done)
            if read.id == entry.id:
                loading.progress = done

        try:
            opened = await self._opener.open(
                choice, resident, self._residents.held, make_room, progress, self._clock()
            )
            self._residents.put(opened)
        finally:
            self._residents.cancel_reservation()
        loading.grant(opened, self._clock)
