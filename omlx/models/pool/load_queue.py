"""Load queue: one job per model, draft and purpose (load or reload), shared by waiters."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from omlx.errors import BadRequest, ModelError, Overloaded
from omlx.models.catalog.files import ModelFiles
from omlx.models.catalog.registry import ModelEntry
from omlx.models.pool.eviction import Evictor, ResidentModels
from omlx.models.pool.load_weights import Report
from omlx.models.pool.loader import ModelLoader
from omlx.models.pool.opening import LoadProgress
from omlx.models.pool.served import Lease, ResidentModel
from omlx.models.pool.speculation import SpeculationConfig, choose_draft

TRANSIENT: Final = ("model.no_room", "model.unreadable", "model.weights_unreadable")
"""Errors that may not recur with the same files."""

FailureKey: TypeAlias = tuple[ModelEntry, ModelEntry, str, bool, ModelFiles, ModelFiles]
"""Target, draft, dtype, trust, and files of both: all conditions of a failure."""
Failure: TypeAlias = tuple[FailureKey, Callable[[], BadRequest | ModelError]]

log = logging.getLogger("omlx.models")


def ignore_progress(model: ModelEntry, progress: LoadProgress) -> None:
    """Report no progress."""


@dataclass(slots=True, eq=False)
class LoadJob:
    """Job to load a model, perhaps with the draft of a request; each waiter gets a lease.

    `persistent`: continues without waiters. `reload`: new settings for a resident model. `started`:
    memory is being filled, hence losing all waiters no longer cancels the job. `outdated`: settings
    have changed since the job read them.
    """

    entry: ModelEntry
    draft: ModelEntry | None = None
    persistent: bool = False
    reload: bool = False
    started: bool = False
    outdated: bool = False
    progress: LoadProgress | None = None
    waiters: list[asyncio.Future[Lease]] = field(default_factory=list)
    task: asyncio.Task[None] | None = None

    @property
    def key(self) -> tuple[str, str | None, bool]:
        return self.entry.id, self.draft.id if self.draft is not None else None, self.reload

    async def lease(self) -> Lease:
        """Wait for a lease. Cancels the job if the last waiter gives up before the start."""
        waiter: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self.waiters.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                waiter.result().release()
            self.waiters.remove(waiter)
            needed = self.waiters or self.started or self.persistent or self.reload
            if not needed and self.task is not None:
                self.task.cancel()
            raise

    def grant(self, resident: ResidentModel, clock: Callable[[], float]) -> None:
        """Give each waiter a lease at once, before another job can evict the model."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(resident.lease(clock))

    def fail(self, error: BaseException) -> None:
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_exception(error)


@dataclass(slots=True, eq=False)
class LoadQueue:
    """Sequential load jobs, in the order of taking `residents.lock`.

    The order is by arrival, except for jobs that first wait for an idle model. `configure` resolves
    a model's speculation from current settings and packages. `report` receives the progress of
    every load.
    """

    _residents: ResidentModels
    _evictor: Evictor
    _loader: ModelLoader
    _configure: Callable[[ModelEntry], SpeculationConfig]
    _clock: Callable[[], float]
    _report: Report
    _failures: dict[tuple[Path, Path], Failure] = field(default_factory=dict)
    _jobs: dict[tuple[str, str | None, bool], LoadJob] = field(default_factory=dict)

    def of(self, model: str) -> list[LoadJob]:
        return [job for job in self._jobs.values() if job.entry.id == model]

    @property
    def requests(self) -> int:
        """Number of waiting requests; a job without waiters counts as 1."""
        return sum(max(1, len(job.waiters)) for job in self._jobs.values())

    def mark_outdated(self) -> None:
        """Reload models after their current load: they may have read outdated settings."""
        for job in self._jobs.values():
            job.outdated = True

    async def cancel(self, model: str) -> None:
        """Cancel a model's jobs, unless nearly complete. Waiters get an error."""
        tasks = [job.task for job in self.of(model) if job.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def submit(self, job: LoadJob) -> LoadJob:
        """Start `job`, or return the running job with the same key."""
        running = self._jobs.get(job.key)
        if running is None or running.task is None or running.task.cancelling():
            running = self._jobs[job.key] = job
            running.task = asyncio.create_task(self._run(running))
            running.task.add_done_callback(lambda _: self._settle(job))
        running.persistent |= job.persistent
        return running

    async def _run(self, job: LoadJob) -> None:
        """Run a job to completion; every outcome but a cancellation reaches the waiters."""
        try:
            if job.draft is None:
                await self._load(job)
            else:
                await self._load_with_draft(job, job.draft)
        except Exception as error:  # noqa: BLE001 — the edge of a task; each waiter raises it
            if not job.waiters:
                fields = {"model": job.entry.id, "detail": str(error)}
                log.warning("model not loaded", extra={"fields": fields})
            job.fail(error)
        finally:
            self._remove(job)
            if job.outdated and self._residents.find(job.entry.id) is not None:
                self.submit(LoadJob(job.entry, reload=True))

    def _settle(self, job: LoadJob) -> None:
        """Fail remaining waiters: the job was cancelled, perhaps before its task began."""
        self._remove(job)
        job.fail(Overloaded("model.load_cancelled", param="model", model=job.entry.id))

    def _remove(self, job: LoadJob) -> None:
        if self._jobs.get(job.key) is job:
            del self._jobs[job.key]

    async def _load_with_draft(self, job: LoadJob, draft: ModelEntry) -> None:
        """Load with the draft of a request, unless known to fail."""

        def read_key() -> FailureKey:
            settings = self._configure(job.entry).settings
            files = job.entry.files, draft.files
            return job.entry, draft, settings.dtype, settings.trust_remote_code, *files

        with self._remember_failure(await asyncio.to_thread(read_key)):
            await self._load(job)

    @contextmanager
    def _remember_failure(self, key: FailureKey) -> Iterator[None]:
        """Remember a failure inside the block; raise the remembered failure of an equal key."""
        pair = key[0].path, key[1].path
        if pair in self._failures:
            known, make_error = self._failures[pair]
            if known == key:
                raise make_error()
        try:
            yield
        except (BadRequest, ModelError) as error:
            if error.code not in TRANSIENT:
                # a new error each time: the traceback of this one refers to weights
                make_error = partial(type(error), error.code, param=error.param, **error.params)
                self._failures[pair] = key, make_error
            raise

    async def _load(self, job: LoadJob) -> None:
        resident = self._residents.find(job.entry.id)
        if resident is None or (resident.has_draft(job.draft) and not job.reload):
            async with self._residents.lock:
                await self._load_locked(job)
            return
        if job.reload:
            await resident.wait_idle()
        with resident.drain():
            await resident.idle.wait()  # before taking the lock: requests may take long
            async with self._residents.lock:
                await self._load_locked(job)

    async def _load_locked(self, job: LoadJob) -> None:
        """Load while holding the lock; residents may have changed while waiting for it."""
        resident = self._residents.find(job.entry.id)
        if resident is not None and resident.has_draft(job.draft) and not job.reload:
            job.grant(resident, self._clock)
        elif resident is not None:
            with resident.drain():
                await resident.idle.wait()
                await self._replace(job, resident)
        elif not job.reload:
            await self._replace(job, None)

    async def _replace(self, job: LoadJob, resident: ResidentModel | None) -> None:
        """Load in place of `resident`, which must be idle."""
        entry, residents = job.entry, self._residents
        job.outdated = False
        speculation = await asyncio.to_thread(self._configure, entry)
        choice = await asyncio.to_thread(
            choose_draft, entry, speculation, job.draft, residents.tokenizer_of
        )
        if resident is not None and not resident.can_keep_weights(speculation.settings):
            await self._residents.evict(resident)
            resident = None

        def report(model: ModelEntry, progress: LoadProgress) -> None:
            job.started = job.started or progress.done > 0
            if progress.done:
                self._evictor.use_reservation(model, progress)
            if model.id == entry.id:
                job.progress = progress
            self._report(model, progress)

        make_room = partial(self._evictor.make_room, entry)
        try:
            loaded = await self._loader.load(
                choice, resident, residents.weights_of, make_room, report, self._clock()
            )
            self._residents.put(loaded)
        finally:
            self._evictor.cancel_reservation()
        job.grant(loaded, self._clock)
