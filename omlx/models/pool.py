"""Which model is loaded, and who is using it.

One target and its draft at a time. A request *leases* a model: if another one is loaded, it waits until the requests
of that one have ended, then the models change places; requests that come meanwhile wait in line. A model that cannot
be loaded is the error of the request that asked for it, and of no other.

Weights are opened on the engine thread, which owns every mlx call; this class lives on the asyncio loop.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import version

import mlx.core as mx
from mlx_lm.tokenizer_utils import TokenizerWrapper

from omlx.engine.limits import Limits
from omlx.engine.loop import EngineLoop
from omlx.engine.memory import SOFT, MemoryGuard
from omlx.engine.spec.strategy import Strategy
from omlx.engine.thread import EngineThread
from omlx.engine.types import Reason
from omlx.errors import BadRequest, EngineDead, ModelError
from omlx.models.cost_file import CostFiles, CostKeeper, CostKey, machine
from omlx.models.discovery import Registry, find_mapped
from omlx.models.entry import ModelEntry
from omlx.models.fit import unfit_entry, unfit_tokenizers
from omlx.models.footprint import machine_limit, used_bytes
from omlx.models.lease import Lease as Lease
from omlx.models.lease import Served as Served
from omlx.models.loader import LoadedWeights, LoadProgress, load, read_tokenizer
from omlx.models.reference import Reference, Wanted, find
from omlx.models.speculative import Speculative, speculative
from omlx.models.tokenizers import Tokenizers
from omlx.settings.configuration import Configuration
from omlx.settings.schema import Settings
from omlx.text.detokenize import TokenBytes

log = logging.getLogger("omlx.models")


class Pool:
    """`default` serves requests that name no model. Who drafts is what `configuration` says of each model, and what
    its package does; without one, what `settings` say.

    `progress` is told, on the engine thread, how far a model has been read. `costs` keeps what passes cost.
    A request that names no draft is served with whichever is loaded: it has no opinion, and the output is the same.
    """

    def __init__(
        self,
        engine: EngineThread,
        registry: Registry,
        settings: Settings,
        *,
        configuration: Configuration | None = None,
        default: str | None = None,
        progress: Callable[[ModelEntry, LoadProgress], None] | None = None,
        costs: CostFiles | None = None,
    ) -> None:
        self.default = default
        self.served: Served | None = None
        self.memory = MemoryGuard(settings.memory_limit or machine_limit(), used_bytes)
        self.fetching: dict[Reference, Wanted] = {}
        self._engine = engine
        self._registry = registry
        self._settings = settings
        self._configuration = configuration or Configuration.of(settings)
        self._progress = progress
        self._costs = CostKeeper(costs)
        self._target: LoadedWeights | None = None
        self._tokenizers = Tokenizers()
        self._leases = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._line = asyncio.Lock()

    @property
    def models(self) -> Sequence[ModelEntry]:
        """What can be asked for."""
        return self._registry.usable

    def model(self, name: str) -> ModelEntry:
        """The one of that name, or else the one that the settings map it to. Raises NotFound, or ModelError saying why
        this one cannot be used."""
        return find_mapped(name, self._registry, self._settings.model_map)

    def speculative(self, name: str) -> Speculative:
        """What is configured and declared for a model now, loaded or not. Raises as `model` does, and ConfigError."""
        found = speculative(self._registry.find(name), self._registry, self._configuration)
        if found.wanted is None:
            return found
        return replace(found, wanted=self.fetching.get(found.wanted.reference, found.wanted))

    def lacks(self, registry: Registry) -> bool:
        """Whether the loaded model would want a draft fetched if `registry` were all there is."""
        if self.served is None or self.served.id not in registry:
            return True
        return speculative(registry.find(self.served.id), registry, self._configuration).wanted is not None

    @property
    def fetches_drafts(self) -> bool:
        """Whether what the loaded model lacks is to be fetched."""
        return self.served is not None and self.served.speculative.settings.draft_download == "auto"

    async def lease(
        self, model: str | None = None, draft: str | None = None, strategy: Strategy | None = None
    ) -> Lease:
        """A model that is loaded and stays so until the lease is released. Waits for its turn, and for loading.

        A request whose own `strategy` drafts with a model gets the configured one even where it is not used otherwise.
        Raises NotFound and BadRequest for names that are not here or do not fit, ModelError if loading failed.
        """
        target = self.model(model or self._default())
        drafting = self._named_draft(draft) if draft is not None else None
        if drafting is None and strategy is not None and any(step.name == "draft" for step in strategy.steps):
            drafting = speculative(target, self._registry, self._configuration).draft
        async with self._line:
            if not self._serves(target, drafting):
                await self._idle.wait()
                await self._change(target, drafting)
            assert self.served is not None
            self._leases += 1
            self._idle.clear()
            return Lease(self.served, self._give_back)

    async def tokenizer(self, model: str | None = None) -> TokenizerWrapper:
        """The tokenizer of a model, loaded or not. Raises as `lease` does; no weights are read for it."""
        entry = self.model(model or self._default())
        target = self._target
        if target is not None and self.served is not None and self.served.id == entry.id:
            return target.tokenizer
        return await self._tokenizers.of(entry)

    async def reconsider(self, registry: Registry) -> None:
        """Other models are here now, or other settings: at the next idle moment, choose the draft again."""
        self._registry = registry
        while self.served is not None and self.served.id in registry:
            await self._idle.wait()
            async with self._line:
                if self._idle.is_set():
                    await self._change(registry.find(self.served.id), None)
                    return

    async def keep_costs(self) -> None:
        """Save what the loaded model's passes cost, if that is to be kept."""
        files = self._costs.files
        with suppress(EngineDead):
            if files is not None and (now := await asyncio.wrap_future(self._engine.call(self._costs.now))) is not None:
                await asyncio.to_thread(files.save, *now)

    async def keep_costs_every(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            await self.keep_costs()

    def _give_back(self) -> None:
        self._leases -= 1
        if self._leases == 0:
            self._idle.set()

    def _default(self) -> str:
        name = self.default or (self.served.id if self.served is not None else None)
        if name is None:
            raise BadRequest("model.none", param="model")
        return name

    def _named_draft(self, name: str) -> ModelEntry:
        """The draft that a request names, usable or not: `_choose` says what is wrong with it."""
        if self._settings.no_draft:
            raise BadRequest("spec.off.no_draft", param="draft_model")
        found = find(name, self._registry)
        if isinstance(found, Reason):
            code = "draft.not_found" if found.code == "draft.not_here" else found.code
            raise BadRequest(code, param="draft_model", **found.params)
        return found

    def _serves(self, target: ModelEntry, draft: ModelEntry | None) -> bool:
        served = self.served
        return served is not None and served.id == target.id and (draft is None or draft.id == served.draft)

    async def _change(self, target: ModelEntry, draft: ModelEntry | None) -> None:
        """Load on the engine thread. What has begun is awaited even by a cancelled caller: its outcome is state."""
        change = asyncio.wrap_future(self._engine.call(partial(self._open, target, draft)))
        try:
            await asyncio.shield(change)
        except asyncio.CancelledError:
            while not change.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([change])
            raise

    # -- on the engine thread ------------------------------------------------------------------------------------

    def _open(self, entry: ModelEntry, wanted: ModelEntry | None) -> None:
        """Serve a target with a draft. If that fails, what was served before still is, or nothing is."""
        configured = speculative(entry, self._registry, self._configuration)
        draft, reason = self._choose(entry, configured, wanted)
        if self.served is None or self.served.id != entry.id:
            self._shut()
        try:
            drafting = self._load(draft) if draft is not None else None
        except ModelError as error:
            if wanted is not None:
                raise
            draft, drafting, reason = None, None, Reason("spec.off.draft_failed", {"detail": error.message})
        target = self._target or self._load(entry)
        self._serve(entry, target, draft, drafting, reason, configured)

    def _choose(
        self, target: ModelEntry, configured: Speculative, wanted: ModelEntry | None
    ) -> tuple[ModelEntry | None, Reason | None]:
        """The draft to load, or why there is none. Only a draft that the request itself names must fit."""
        draft = wanted or configured.drafting
        if draft is None:
            return None, configured.undrafted
        try:
            reason = self._misfit(target, draft)
        except ModelError as error:
            if wanted is not None:
                raise
            return None, Reason("spec.off.draft_failed", {"detail": error.message})
        if reason is not None and wanted is not None:
            raise BadRequest(reason.code, param="draft_model", **reason.params)
        return (draft, None) if reason is None else (None, reason)

    def _misfit(self, target: ModelEntry, draft: ModelEntry) -> Reason | None:
        if (reason := unfit_entry(target, draft)) is not None:
            return reason
        loaded = self._target if self.served is not None and self.served.id == target.id else None
        tokenizer = loaded.tokenizer if loaded is not None else read_tokenizer(target)
        return unfit_tokenizers(tokenizer, read_tokenizer(draft))

    def _load(self, entry: ModelEntry) -> LoadedWeights:
        return load(entry, self._settings.dtype, partial(self._progress, entry) if self._progress is not None else None)

    def _serve(
        self,
        entry: ModelEntry,
        target: LoadedWeights,
        draft: ModelEntry | None,
        drafting: LoadedWeights | None,
        reason: Reason | None,
        configured: Speculative,
    ) -> None:
        name = draft.id if draft is not None else None
        self.memory.weights = target.size_bytes + (drafting.size_bytes if drafting is not None else 0)
        loop = EngineLoop(
            target.model,
            target.vocab_size,
            _limits(configured, target.context_length, self.memory),
            draft=drafting.model if drafting is not None else None,
            draft_name=name,
            no_draft=reason,
            costs=self._costs.open(self._cost_key(entry, target)),
            memory=self.memory,
        )
        if self.served is not None:
            self._engine.detach(self.served.id)
        told = loop.snapshot()
        self._engine.attach(entry.id, loop)
        self._target = target
        self.served = Served(
            id=entry.id,
            tokenizer=target.tokenizer,
            token_bytes=TokenBytes(target.tokenizer),
            vocab_size=target.vocab_size,
            context_length=loop.limits.context_length,
            stop_ids=target.stop_ids,
            sampling=target.sampling,
            draft=name,
            no_draft=reason or told.no_draft,
            off=told.off,
            speculative=configured,
        )
        log.info(
            "loaded", extra={"fields": {"model": entry.id} if name is None else {"model": entry.id, "draft": name}}
        )

    def _cost_key(self, entry: ModelEntry, target: LoadedWeights) -> CostKey:
        return CostKey(entry.id, self._settings.dtype, target.size_bytes, machine(), version("mlx"))

    def _shut(self) -> None:
        """Forget the loaded model and give its memory back."""
        if self.served is not None:
            self._engine.detach(self.served.id)
            self._costs.close()
        self.served = self._target = None
        gc.collect()
        mx.clear_cache()


def _limits(configured: Speculative, context_length: int, memory: MemoryGuard) -> Limits:
    """The bounds of a model that was made for `context_length` tokens. Unless somebody says how much, prefixes may
    take half of what its weights leave: they are given up first when memory is short."""
    settings, window = configured.settings, configured.window
    spare = max(0, int(SOFT * (memory.limit or 0)) - memory.weights) // 2
    return Limits(
        context_length=min(context_length, settings.max_context or context_length),
        max_rows=settings.max_concurrent_requests,
        max_waiting=settings.max_waiting,
        prefill_chunk=settings.prefill_chunk,
        prefix_bytes=spare if settings.prefix_bytes is None else settings.prefix_bytes,
        num_draft_tokens=window.longest if window.fixed else None,
    )
