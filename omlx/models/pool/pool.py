"""Which models are in memory, and who is using them.

A request *leases* a model. One that is in memory serves at once; for any other the request waits while it is loaded,
and while room is made: whichever was used longest ago leaves, as soon as the requests that it has have ended. A
request finishes on the model that it began with. Models are loaded one after another, in the order in which they were
asked for, so nobody is overtaken for ever. A model that cannot be loaded is the error of those who asked for it, and
of no other.

    lease ─► in memory? ─► yes: a lease
                └─► no: a LoadJob, one a model; in line ─► choose a draft ─► make room ─► read ─► leases for all

This class lives on the event loop; what it has done on the engine thread goes through `ModelLoader`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from omlx.engine.memory import MemoryGuard
from omlx.engine.strategy import Strategy
from omlx.engine.thread import EngineThread
from omlx.engine.types import Reason
from omlx.errors import BadRequest, ModelError
from omlx.models.catalog.catalog import find_model
from omlx.models.catalog.discovery import Registry
from omlx.models.catalog.entry import ModelEntry
from omlx.models.catalog.reference import MissingDraft, Reference, find_draft
from omlx.models.package.pooling import Pooling
from omlx.models.package.tokenizer import TokenizerCache
from omlx.models.pool.cost_file import CostFiles
from omlx.models.pool.embedding import Embedding
from omlx.models.pool.eviction import ResidentModels
from omlx.models.pool.footprint import default_limit_bytes, used_bytes
from omlx.models.pool.load import ModelLoader, Reader, limits_of
from omlx.models.pool.load_queue import LoadQueue
from omlx.models.pool.load_weights import LoadProgress, load_steps
from omlx.models.pool.resident import Lease as Lease
from omlx.models.pool.resident import LoadJob, ModelStatus, State
from omlx.models.pool.resident import ServedModel as ServedModel
from omlx.models.pool.speculation_config import SpeculationConfig, resolve_speculation
from omlx.settings.configuration import Configuration, LiveConfiguration
from omlx.settings.schema import Settings

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

log = logging.getLogger("omlx.models")


class Pool:
    """`default` serves requests that name no model. Who drafts is what `configuration` says of each model, and what
    its package does; without one, what `settings` say.

    `progress` is told how far a model has been read. `costs` keeps what passes cost. `used` says how many bytes are
    taken, by whatever; `clock` counts seconds and never goes back.
    A request that names no draft is served with whichever is loaded: it has no opinion, and the output is the same.
    """

    def __init__(
        self,
        engine: EngineThread,
        registry: Registry,
        settings: Settings,
        *,
        configuration: LiveConfiguration | None = None,
        default: str | None = None,
        progress: Callable[[ModelEntry, LoadProgress], None] | None = None,
        costs: CostFiles | None = None,
        used: Callable[[], int] = used_bytes,
        clock: Callable[[], float] = time.monotonic,
        read: Reader = load_steps,
    ) -> None:
        self.fetching: dict[Reference, MissingDraft] = {}
        self._default = default
        self._engine = engine
        self._registry = registry
        self._settings = settings
        self.live_configuration = configuration or LiveConfiguration.of(settings)
        self.memory = MemoryGuard(self._limit(), used)
        self._opener = ModelLoader(engine, self.memory, progress, costs, read)
        self._costs = costs
        self._clock = clock
        self.residents = ResidentModels(engine, self._opener, self.memory, self._limit, clock)
        self.load_queue = LoadQueue(self.residents, self._opener, self._configured, clock)
        self._tokenizers = TokenizerCache()
        self._leaving: set[asyncio.Task[None]] = set()

    @property
    def _configuration(self) -> Configuration:
        """The current snapshot of the settings."""
        return self.live_configuration.current

    # -- what there is -------------------------------------------------------------------------------------------

    @property
    def models(self) -> Sequence[ModelEntry]:
        """What can be asked for."""
        return self._registry.usable

    @property
    def registry(self) -> Registry:
        """Everything that was found."""
        return self._registry

    def resolve(self, name: str) -> ModelEntry:
        """Raises NotFound, or ModelError saying why this one cannot be used."""
        return find_model(name, self._registry, self._configuration)

    def entry(self, name: str) -> ModelEntry:
        """The same, usable or not. Raises NotFound."""
        try:
            return self.resolve(name)
        except ModelError:
            return next(entry for entry in self._registry.entries if name in (entry.id, entry.name))

    @property
    def loaded(self) -> Sequence[ServedModel]:
        """The models in memory, the one that was used last at the end."""
        return [resident.served for resident in self.residents]

    @property
    def served(self) -> ServedModel | None:
        """The model that was used last, if it is still in memory."""
        return self.loaded[-1] if self.residents else None

    @property
    def default(self) -> str | None:
        """The model of requests that name none: from the command line, else from the settings, else the last one."""
        served = self.served
        last = served.id if served is not None else None
        return self._default or self._configuration.resolve().settings.default_model or last

    @property
    def limit_bytes(self) -> int:
        """What models may take together, caches and drafts included."""
        return self.memory.limit or 0

    @property
    def used_bytes(self) -> int:
        """What they take now, caches and drafts included."""
        return self.memory.used()

    def status(self, model: str) -> ModelStatus:
        """How a model, by its id, stands in memory."""
        resident = self.residents.find(model)
        loading = [each for each in self.load_queue.of(model) if not each.again]
        waiting = sum(len(each.waiters) for each in loading)
        progress = next((each.progress for each in loading if each.progress is not None), None)
        if resident is None:
            return ModelStatus(
                State.LOADING if loading else State.UNLOADED, progress, waiting=waiting
            )
        return ModelStatus(
            State.DRAINING if resident.draining else State.READY,
            progress,
            active=resident.leases,
            waiting=waiting,
            pinned=resident.pinned,
            weights_bytes=sum(weights.size_bytes for weights in resident.weights.values()),
            draft=resident.served.draft,
            idle_s=None if resident.leases else self._clock() - resident.used_at,
        )

    def speculation(self, name: str) -> SpeculationConfig:
        """What is configured and declared for a model now, loaded or not. Raises as `model` does.

        Its warnings tell of files of settings that do not count, too.
        """
        found = self._configured(self.resolve(name))
        wanted = found.missing_draft and self.fetching.get(
            found.missing_draft.reference, found.missing_draft
        )
        return replace(
            found, missing_draft=wanted, warnings=(*found.warnings, *self._configuration.notes)
        )

    def draft_missing(self, model: str, registry: Registry) -> bool:
        """Whether a loaded model would be without its draft if `registry` were all there is."""
        if model not in registry:
            return True
        return resolve_speculation(
            registry.find(model), registry, self._configuration
        ).draft_missing

    # -- using it ------------------------------------------------------------------------------------------------

    async def lease(
        self, model: str | None = None, draft: str | None = None, strategy: Strategy | None = None
    ) -> Lease:
        """A model that is loaded and stays so until the lease is released. Waits for its turn, and for loading.

        A request whose own `strategy` drafts with a model gets the configured one even where it is not used otherwise.
        Raises NotFound and BadRequest for names that are not here or do not fit, ModelError if loading failed.
        """
        target = self.resolve(model or self._some_default())
        drafting = self._named_draft(draft) if draft is not None else None
        if (
            drafting is None
            and strategy is not None
            and any(step.name == "draft" for step in strategy.steps)
        ):
            drafting = self._configured(target).draft
        resident = self.residents.find(target.id)
        if resident is not None and resident.serves(drafting):
            return resident.lease(self._clock)
        return await self.load_queue.begin(LoadJob(target, drafting)).lease()

    async def load(self, name: str) -> None:
        """Have a model in memory. Goes on when the caller has gone. Raises as `lease` does."""
        entry = self.resolve(name)
        resident = self.residents.find(entry.id)
        if resident is None or not resident.serves(None):
            (await self.load_queue.begin(LoadJob(entry, kept=True)).lease()).release()

    async def unload(self, name: str) -> None:
        """Take a model out of memory when its requests have ended, or stop loading it; those who wait for it hear so.

        Goes on when the caller has gone. Raises as `model` does.
        """
        entry = self.resolve(name)
        await self.load_queue.cancel(entry.id)
        if (resident := self.residents.find(entry.id)) is not None:
            leaving = asyncio.create_task(self.residents.drain(resident))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
            await asyncio.shield(leaving)

    async def embed(
        self, served: ServedModel, tokens: Sequence[int], declared: Pooling
    ) -> tuple[float, ...]:
        """The vector of a text for a leased model, read in chunks between steps of running requests.

        `tokens`: ids, at least one. Raises EngineDead, and BadRequest for a model without hidden states.
        """
        job = Embedding(tokens, declared.mode)
        while not await asyncio.wrap_future(self._engine.with_loop(served.id, job.advance)):
            pass
        assert job.vector is not None
        return job.vector

    async def tokenizer(self, model: str | None = None) -> TokenizerWrapper:
        """The tokenizer of a model, loaded or not. Raises as `lease` does; no weights are read for it."""
        entry = self.resolve(model or self._some_default())
        resident = self.residents.find(entry.id)
        return (
            resident.served.tokenizer if resident is not None else await self._tokenizers.get(entry)
        )

    def template_variables(self, model: str | None = None) -> Mapping[str, Any]:
        """What is configured for the template of a model, loaded or not. Raises as `speculation` does."""
        return self.speculation(model or self._some_default()).settings.chat_template_kwargs or {}

    # -- what changes by itself ----------------------------------------------------------------------------------

    async def update_registry(self, registry: Registry) -> None:
        """Other models are here now: at their next idle moments, choose drafts again."""
        self._registry = registry
        changes = await self.reconfigure()
        tasks = [change.task for change in changes if change.task is not None]
        if tasks:
            await asyncio.wait(tasks)

    async def reconfigure(self) -> list[LoadJob]:
        """Take up settings that have changed: at once, or, for what is returned, at a model's next idle moment."""
        changes = []
        self.load_queue.settings_changed()
        for resident in list(self.residents):
            try:
                configured = await asyncio.to_thread(self.speculation, resident.entry.id)
            except (BadRequest, ModelError) as error:
                log.warning(
                    "settings not taken up",
                    extra={"fields": {"model": resident.entry.id, "code": error.code}},
                )
                continue
            target = resident.weights.get(resident.entry.path)
            if target is None:  # it left meanwhile
                continue
            if resident.outlives(configured, limits_of(configured, target.context_length)):
                resident.served = replace(resident.served, speculation=configured)
            else:
                changes.append(self.load_queue.begin(LoadJob(resident.entry, again=True)))
        self.residents.account()
        return changes

    async def sweep_every(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await self.residents.sweep()
            except Exception:  # the edge of a background task
                log.exception("sweep")

    async def save_costs(self) -> None:
        """Save what the loaded models' passes cost, if that is to be kept."""
        if self._costs is not None:
            await self.residents.save_costs(self._costs)

    async def save_costs_every(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            await self.save_costs()

    def _limit(self) -> int:
        """What models may take, as the settings have it now."""
        limit = self._configuration.resolve().settings.memory_limit
        return default_limit_bytes() if limit is None else limit

    def _configured(self, entry: ModelEntry) -> SpeculationConfig:
        return resolve_speculation(entry, self._registry, self._configuration)

    # -- names ---------------------------------------------------------------------------------------------------

    def _some_default(self) -> str:
        name = self.default
        if name is None:
            raise BadRequest("model.none", param="model")
        return name

    def _named_draft(self, name: str) -> ModelEntry:
        """The draft that a request names, usable or not: `choose` says what is wrong with it."""
        if self._settings.no_draft:
            raise BadRequest("spec.off.no_draft", param="draft_model")
        found = find_draft(name, self._registry)
        if isinstance(found, Reason):
            code = "draft.not_found" if found.code == "draft.not_here" else found.code
            raise BadRequest(code, param="draft_model", **found.params)
        return found
