"""The model pool: which models are in memory, and the leases of the requests that use them.

| state    | lease, load       | unload            | LRU, idle time-out | new settings     |
|----------|-------------------|-------------------|--------------------|------------------|
| unloaded | queue a load job  | nothing           |                    |                  |
| loading  | wait for that job | cancel the job    |                    | reload when idle |
| ready    | lease at once     | drain, then evict | evict while idle   | reload when idle |
| draining | queue a load job  | evict when idle   | evict while idle   | reload when idle |

A request keeps its model until it releases its lease. Load jobs run one at a time: choose a draft,
make room by LRU eviction, read weights, grant leases. The state is derived from the resident model
and the jobs. A model that cannot be loaded fails only the requests for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from omlx.engine.disk.tier import DiskCache
from omlx.engine.memory import MemoryGuard
from omlx.engine.speculation.strategy import Strategy
from omlx.engine.thread import EngineThread
from omlx.errors import BadRequest, ModelError, Reason
from omlx.models.catalog.catalog import Catalog
from omlx.models.catalog.reference import MissingDraft, Reference
from omlx.models.catalog.registry import ModelEntry, Registry
from omlx.models.catalog.tokenizer import cached_tokenizer
from omlx.models.pool.cost_store import CostStore
from omlx.models.pool.eviction import Evictor, ResidentModels, background
from omlx.models.pool.footprint import (
    MemoryParts,
    Trimmer,
    beside_arrays,
    limit_bytes,
    mlx_bytes,
    taken_bytes,
)
from omlx.models.pool.load_queue import LoadJob, LoadQueue, ignore_progress
from omlx.models.pool.load_weights import Report, WeightReader, load_steps
from omlx.models.pool.loader import ModelLoader
from omlx.models.pool.served import Lease, ModelStatus, ServedModel, State, limits_of
from omlx.models.pool.speculation import (
    SpeculationConfig,
    find_requested_draft,
    resolve_speculation,
)
from omlx.models.texts import ReadText
from omlx.models.vision.support import VisionSupport, read_support
from omlx.text.tokens import Tokenizer

log = logging.getLogger("omlx.models")


def build_pool(
    engine: EngineThread,
    catalog: Catalog,
    *,
    report: Report = ignore_progress,
    costs: CostStore | None = None,
    used: Callable[[], int] = taken_bytes,
    clock: Callable[[], float] = time.monotonic,
    read: WeightReader = load_steps,
    disks: DiskCache | Reason | None = None,
    apply_limit: Callable[[int], None] = lambda limit: None,
) -> Pool:
    """Build a pool and its parts.

    `report` receives the progress of loads, `costs` stores measured costs, `used` returns the bytes
    in use, `clock` monotonic seconds; `read` reads weights; `disks` stores prefixes; `apply_limit`
    is called with the memory limit when it may have changed.
    """

    def limit() -> int:
        return limit_bytes(catalog.configuration.resolve().settings.memory_limit)

    own = partial(beside_arrays, used)
    memory = MemoryGuard(limit(), used, own=own, trim=Trimmer(clock))
    apply_limit(limit())
    loader = ModelLoader(engine, memory, costs, read, disks)
    residents = ResidentModels(engine, loader, memory, limit, apply_limit, memory.limit)
    evictor = Evictor(engine, residents, memory, limit, clock)
    configure = partial(configured_speculation, catalog)
    load_queue = LoadQueue(residents, evictor, loader, configure, clock, report)
    return Pool(engine, catalog, memory, residents, evictor, load_queue, costs, clock)


def configured_speculation(catalog: Catalog, entry: ModelEntry) -> SpeculationConfig:
    """Resolve a model's speculation from current settings, package and registry."""
    return resolve_speculation(entry, catalog.registry, catalog.configuration)


@dataclass(eq=False)
class Pool:
    """Loaded models and their leases. Lives on the event loop.

    A request without a draft is served with any loaded draft: the output is the same. `fetching`
    holds the state of draft downloads.
    """

    _engine: EngineThread
    catalog: Catalog
    memory: MemoryGuard
    residents: ResidentModels
    evictor: Evictor
    load_queue: LoadQueue
    _costs: CostStore | None
    _clock: Callable[[], float]
    fetching: dict[Reference, MissingDraft] = field(default_factory=dict)
    _unloading: set[asyncio.Task[None]] = field(default_factory=set)

    # -- names and state ---------------------------------------------------------------------------

    @property
    def registry(self) -> Registry:
        return self.catalog.registry

    @property
    def models(self) -> Sequence[ModelEntry]:
        """Usable models permitted to the current request."""
        return tuple(filter(self.catalog.allows, self.catalog.registry.usable))

    def resolve(self, name: str | None = None) -> ModelEntry:
        """Return the usable model of this name, None: the default. Raises as `Catalog.resolve`."""
        return self.catalog.resolve(name, fallback=self._last_used_id)

    def entry(self, name: str) -> ModelEntry:
        """Return the model of this name, usable or not. Raises NotFound."""
        return self.catalog.entry(name)

    @property
    def default(self) -> str | None:
        """Model of requests that name none: the configured default, else `last_used`."""
        return self.catalog.default or self._last_used_id

    @property
    def loaded(self) -> Sequence[ServedModel]:
        """Resident models, the most recently used last."""
        return [resident.served for resident in self.residents]

    @property
    def last_used(self) -> ServedModel | None:
        """The most recently used resident model that generates."""
        return next((model for model in reversed(self.loaded) if model.generates), None)

    @property
    def limit_bytes(self) -> int:
        """Bytes — memory limit for all models with their drafts and caches."""
        return self.memory.limit or 0

    @property
    def used_bytes(self) -> int:
        """Bytes in use by all models with their drafts and caches."""
        return self.memory.used()

    @property
    def memory_parts(self) -> MemoryParts:
        return MemoryParts.of(self.used_bytes, self.memory.weights, mlx_bytes()["mlx_active"])

    def status(self, model: str) -> ModelStatus:
        resident = self.residents.find(model)
        every = self.load_queue.of(model)
        jobs = [job for job in every if not job.reload]
        waiting = sum(len(job.waiters) for job in jobs)
        progress = next((job.progress for job in jobs if job.progress is not None), None)
        if resident is None:
            return ModelStatus(State.LOADING if jobs else State.UNLOADED, progress, waiting=waiting)
        return ModelStatus(
            State.DRAINING if resident.draining else State.READY,
            progress,
            active=resident.leases,
            waiting=waiting,
            pinned=resident.pinned,
            weights_bytes=sum(weights.size_bytes for weights in resident.weights.values()),
            draft=resident.served.draft,
            idle_s=None if resident.leases else self._clock() - resident.used_at,
            ttl_s=resident.ttl_s,
            stages=resident.stages,
            reloading=len(jobs) < len(every),
        )

    def speculation(self, name: str | None = None) -> SpeculationConfig:
        """Return the current configuration of a model's speculation, loaded or not.

        Its warnings include those about invalid settings files. Reads the package file; raises as
        `resolve`.
        """
        speculation = configured_speculation(self.catalog, self.resolve(name))
        missing = speculation.missing_draft
        if missing is not None:
            missing = self.fetching.get(missing.reference, missing)
        warnings = (*speculation.warnings, *self.catalog.configuration.notes)
        return replace(speculation, missing_draft=missing, warnings=warnings)

    def draft_missing(self, model: str, registry: Registry) -> bool:
        """Return whether a loaded model would miss its draft with `registry`. Reads the package."""
        if model not in registry:
            return True
        entry = registry.get_usable(model)
        return resolve_speculation(entry, registry, self.catalog.configuration).draft_missing

    # -- use ---------------------------------------------------------------------------------------

    async def lease(
        self, model: str | None = None, draft: str | None = None, strategy: Strategy | None = None
    ) -> Lease:
        """Return a lease of a loaded model, after waiting for its turn and for loading.

        `draft` is the one that a request names. A `strategy` of its own that uses a draft model
        gets the configured draft, even if it is inactive for other requests. Raises NotFound and
        BadRequest for names, ModelError if loading failed.
        """
        target = self.resolve(model)
        requested = None
        if draft is not None:
            if self.catalog.configuration.resolve().settings.no_draft:
                raise BadRequest("spec.off.no_draft", param="draft_model")
            find = partial(find_requested_draft, registry=self.catalog.registry)
            requested = await asyncio.to_thread(self.catalog.permitted, draft, find, "draft_model")
        elif strategy is not None and strategy.clauses[0].name not in ("off", "auto"):
            speculation = await asyncio.to_thread(configured_speculation, self.catalog, target)
            requested = speculation.draft_for(strategy)
        resident = self.residents.find(target.id)
        if resident is not None and resident.accepts(requested):
            return resident.lease(self._clock)
        return await self.load_queue.submit(LoadJob(target, requested)).lease()

    def lease_loaded(self, model: str) -> Lease | None:
        """Return a lease of a model in memory; None for others, and while the model drains."""
        resident = self.residents.find(model)
        return resident.lease(self._clock) if resident and resident.accepts(None) else None

    async def load(self, name: str) -> None:
        """Load a model; continues if the caller is cancelled. Raises as `lease`."""
        entry = self.resolve(name)
        resident = self.residents.find(entry.id)
        if resident is None or not resident.accepts(None):
            (await self.load_queue.submit(LoadJob(entry, persistent=True)).lease()).release()

    async def unload(self, name: str, *, if_idle: bool = False) -> None:
        """Unload a model once it has drained, or cancel its loading; its waiters get an error.

        Continues if the caller is cancelled. Raises as `resolve` and `check_unload`."""
        entry = self.resolve(name)
        self.residents.check_unload(entry.id, if_idle=if_idle)
        await self.load_queue.cancel(entry.id)
        resident = self.residents.find(entry.id)
        if resident is not None:
            await asyncio.shield(background(self.residents.unload(resident), self._unloading))

    async def read_text(self, served: ServedModel, text: ReadText) -> None:
        """Read a text in chunks between steps of running requests. The caller has a lease.

        Raises EngineDead, Overloaded without memory for its KV cache, BadRequest for a model over
        several machines, and what `text` raises.
        """
        if self.status(served.id).stages:  # followers return hidden states to no request
            raise BadRequest("embedding.staged", param="model")
        step = partial(text.step, memory=self.memory)
        while not await asyncio.wrap_future(self._engine.read_text(served.id, step)):
            pass

    async def tokenizer(self, model: str | None = None) -> Tokenizer:
        """Return the tokenizer of a model, loaded or not. Raises as `resolve`; reads no weights."""
        entry = self.resolve(model)
        resident = self.residents.find(entry.id)
        if resident is not None:
            return resident.served.tokenizer
        return await asyncio.to_thread(lambda: cached_tokenizer(entry, entry.files))

    # -- changes of registry and settings ----------------------------------------------------------

    def list_models(self, found: Registry) -> None:
        """Replace the registry after a scan; loaded models stay listed."""
        self.catalog.update(found, [resident.entry for resident in self.residents])

    async def update_registry(self, registry: Registry) -> None:
        """Replace the registry and wait until each model has applied it at an idle moment."""
        self.list_models(registry)
        jobs = await self.reconfigure()
        tasks = [job.task for job in jobs if job.task is not None]
        if tasks:
            await asyncio.wait(tasks)

    async def reconfigure(self) -> list[LoadJob]:
        """Apply changed settings to the models in memory.

        Returns the jobs of models to reload, each at its next idle moment.
        """
        self.load_queue.mark_outdated()
        jobs = []
        for resident in list(self.residents):
            if not resident.entry.path.is_dir():
                continue  # the package is unreadable
            try:
                speculation = await asyncio.to_thread(self.speculation, resident.entry.id)
            except (BadRequest, ModelError) as error:
                fields = {"model": resident.entry.id, "code": error.code}
                log.warning("settings not applied", extra={"fields": fields})
                continue
            target = resident.weights.get(resident.entry.path)
            if target is None:  # evicted meanwhile
                continue
            if resident.can_keep_loop(speculation, limits_of(speculation, target)):
                resident.served = replace(resident.served, speculation=speculation)
            else:
                jobs.append(self.load_queue.submit(LoadJob(resident.entry, reload=True)))
        self.residents.update_budgets()
        return jobs

    # -- background tasks --------------------------------------------------------------------------

    async def save_costs(self) -> None:
        if self._costs is not None:
            await self.residents.save_costs(self._costs)

    @property
    def _last_used_id(self) -> str | None:
        served = self.last_used
        return served.id if served is not None else None


def load_pinned(pool: Pool) -> None:
    """Start to load the pinned models that are not in memory, one after another.

    Returns at once; a failure is logged.
    """
    registry = pool.catalog.registry
    for model, layer in pool.catalog.configuration.stored.models.items():
        absent = model in registry and pool.residents.find(model) is None
        if layer.values.get("pinned") and absent:
            pool.load_queue.submit(LoadJob(registry.get_usable(model), persistent=True))


async def find_vision(pool: Pool, model: str) -> VisionSupport:
    """Return a model's vision support, without tower if not loaded.

    Raises as `Pool.tokenizer`; reads no weights.
    """
    entry, tokenizer = pool.resolve(model), await pool.tokenizer(model)
    resident = pool.residents.find(entry.id)
    if resident is not None:
        return resident.served.vision
    settings = pool.speculation(model).settings
    if not settings.vision:
        return VisionSupport(off_reason=Reason("vision.off.setting"))
    return await asyncio.to_thread(read_support, entry.files, tokenizer, settings.library)


def why_no_vision(
    served: ServedModel | None, files: Reason | None, *, vision: bool
) -> Reason | None:
    """Return why a model reads no images; None if it does.

    `files` is the result of `read_vision_off`, `vision` the setting.
    """
    if served is not None:
        if served.vision.family is not None:
            return None
        return served.vision.off_reason or Reason("vision.off.text")
    if files is None and not vision:
        return Reason("vision.off.setting")
    return files
