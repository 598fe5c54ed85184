"""Loading: from a chosen target and draft to a resident model with its engine loop.

    begin to read (total size) ─► make room ─► read in portions ─► probe ─► build the loop

Every mlx call runs on the engine thread, one portion or one pass between two engine steps, so that
the streams of other models continue. Tokenizers are read on other threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from omlx.engine.device.gpu import fill_workspace
from omlx.engine.disk.tier import DiskCache
from omlx.engine.memory import MemoryGuard
from omlx.engine.thread import EngineThread
from omlx.engine.types import Limits
from omlx.errors import BadRequest, EngineDead, ModelError, Overloaded, ProbeFailed, Reason
from omlx.models.catalog.facts import ModelIdentity, model_identity
from omlx.models.catalog.registry import ModelEntry
from omlx.models.catalog.tokenizer import read_tokenizer
from omlx.models.library.choose import AUTO
from omlx.models.pool.cost_store import CostStore, LoadedCosts
from omlx.models.pool.footprint import release_memory
from omlx.models.pool.load_weights import (
    LoadedModel,
    LoadOptions,
    LoadSteps,
    Report,
    WeightReader,
    check_checkpoint,
    exactness_steps,
    find_head,
    next_step,
    recached_steps,
)
from omlx.models.pool.opening import Dtype, LoadProgress
from omlx.models.pool.prefix_disk import ModelDisks, model_disks
from omlx.models.pool.served import KVCacheFacts, ResidentModel, ServedModel, limits_of, log_loaded
from omlx.models.pool.speculation import DraftChoice
from omlx.settings.schema import STRICT, Settings
from omlx.text.tokens import TokenBytes

if TYPE_CHECKING:
    from omlx.engine.loop import EngineLoop
    from omlx.models.pool.head import Head

T = TypeVar("T")
DONE: Final = object()
log = logging.getLogger("omlx.models")

WeightsOf = Callable[[ModelEntry, Dtype], LoadedModel | None]
"""Returns the weights of a resident target or draft; None if not in memory."""

MakeRoom = Callable[[int], Awaitable[None]]
"""Reserves bytes for weights. Raises ModelError or Overloaded without room."""


@dataclass(slots=True, eq=False)
class ModelLoader:
    """Loading and unloading of models on the engine thread.

    `memory` bounds the requests of all models; `costs` stores measured costs of passes; `read`
    reads weights; `disks` stores prefixes, or is the reason for not storing any.
    """

    engine: EngineThread
    memory: MemoryGuard
    costs: CostStore | None
    read: WeightReader
    disks: DiskCache | Reason | None

    async def load(
        self,
        choice: DraftChoice,
        previous: ResidentModel | None,
        weights_of: WeightsOf,
        make_room: MakeRoom,
        report: Report,
        now: float,
    ) -> ResidentModel:
        """Read missing weights and attach the model in place of `previous`, which is idle.

        Raises ModelError, Overloaded, and BadRequest for a requested draft that cannot be run; then
        `previous` continues. Any other draft that cannot be read or run, or for which there is no
        room, becomes a reason.
        """
        load = _Load(self, choice, weights_of, make_room, report)
        try:
            return await load.run(previous, now)
        finally:
            await load.close()

    async def close(self, resident: ResidentModel) -> None:
        """Detach an idle model and free its memory, except weights shared with other models."""
        await asyncio.shield(self.on_engine(partial(self._detach, resident)))

    async def on_engine(self, work: Callable[[], T]) -> T:
        return await asyncio.wrap_future(self.engine.call(work))

    def _detach(self, resident: ResidentModel) -> None:
        self.engine.detach(resident.entry.id)
        resident.costs.close()
        resident.weights.clear()
        del resident.loop
        log.info("unloaded", extra={"fields": {"model": resident.entry.id}})
        release_memory()


@dataclass(slots=True, eq=False)
class _Parts:
    """Parts of a loop to build."""

    target: LoadedModel
    draft: LoadedModel | None
    head: Head | Reason
    costs: LoadedCosts
    disks: ModelDisks
    identity: ModelIdentity


@dataclass(slots=True, eq=False)
class _Load:
    """One load of target, draft and head, a portion between two engine steps.

    `_begun` are weights being read. `choice` loses an unreadable draft.
    """

    _loader: ModelLoader
    _choice: DraftChoice
    _weights_of: WeightsOf
    _make_room: MakeRoom
    _report: Report
    _begun: dict[Path, LoadSteps] = field(default_factory=dict)

    @property
    def _settings(self) -> Settings:
        return self._choice.speculation.settings

    async def run(self, previous: ResidentModel | None, now: float) -> ResidentModel:
        loader = self._loader
        await loader.on_engine(fill_workspace)  # before memory is judged
        target, draft = await self._read_models()
        head = await self._read_head(target)
        costs = previous.costs if previous is not None else LoadedCosts(loader.costs)
        if self._settings.exactness == STRICT and target.generates:
            steps = await loader.on_engine(partial(self._strict_steps, target, costs))
            while await loader.on_engine(partial(next, steps, DONE)) is not DONE:
                pass
        disks = await asyncio.to_thread(model_disks, loader.disks, self._choice, target, draft)
        identity = await asyncio.to_thread(self._identity)
        parts = _Parts(target, draft, head, costs, disks, identity)
        resident = await _uninterrupted(loader.on_engine(partial(self._attach, parts, now)))
        if draft is not None and resident.served.draft is None:
            del draft, parts  # could not run; these are the last references to the weights
            loader.engine.call(release_memory)
        return resident

    async def close(self) -> None:
        if self._begun:  # a task that the end of the loop overtakes is never awaited
            with suppress(EngineDead):
                await asyncio.shield(self._drop(*self._begun))

    # -- weights -----------------------------------------------------------------------------------

    async def _read_models(self) -> tuple[LoadedModel, LoadedModel | None]:
        """Return target and draft, from memory or read. Raises as `load`."""
        target, draft = await self._in_memory(self._choice.target), None
        nbytes = 0 if target is not None else await self._begin(self._choice.target)
        if self._choice.draft_model is not None:
            draft = await self._read_draft(self._choice.draft_model, nbytes)
        if target is None:
            await self._make_room(nbytes)
            target = await self._finish(self._choice.target)
        return target, draft

    async def _read_draft(self, entry: ModelEntry, target_bytes: int) -> LoadedModel | None:
        """Return a draft model, with room for the target; None with the reason noted."""
        try:
            draft = await self._in_memory(entry)
            nbytes = 0 if draft is not None else await self._begin(entry)
            await self._make_room(target_bytes + nbytes)
            return draft if draft is not None else await self._finish(entry)
        except (ModelError, Overloaded) as error:
            failure = error.message
            if self._choice.requested and isinstance(error, ProbeFailed):
                code = "spec.off.draft_failed"
                raise BadRequest(code, param="draft_model", detail=failure) from error
            if self._choice.requested:
                if error.params.get("model") == entry.id:
                    error.param = "draft_model"
                raise
        await self._drop(entry.path)  # the error is gone, and what its traceback held in memory
        self._choice = self._choice.without_draft(failure)
        return None

    async def _in_memory(self, entry: ModelEntry) -> LoadedModel | None:
        """Return a model in memory, with KV caches as set; None without its weights."""
        settings, is_target = self._settings, entry == self._choice.target
        loaded = self._weights_of(entry, settings.dtype)
        if loaded is None or (is_target and not loaded.follows(settings)):
            return None
        kv_bits = settings.kv_number_bits if is_target else None
        return await self._run(entry, recached_steps(loaded, kv_bits))

    async def _begin(self, entry: ModelEntry) -> int:
        """Begin to read a model; return the bytes of its weights."""
        settings, is_target = self._settings, entry == self._choice.target
        library = settings.library if is_target else AUTO
        await asyncio.to_thread(check_checkpoint, entry, library)
        tokenizer = self._choice.tokenizers.get(entry.path)
        if tokenizer is None:
            tokenizer = await asyncio.to_thread(read_tokenizer, entry)
        options = LoadOptions(
            tokenizer=tokenizer,
            trusted=settings.trust_remote_code and is_target,
            vision=settings.vision and is_target,
            library=library,
            kv_bits=settings.kv_number_bits if is_target else None,
        )
        steps = self._begun[entry.path] = self._loader.read(entry, settings.dtype, options)
        progress = None
        while progress is None:  # others are asked first whether they can read it too
            progress = await self._loader.on_engine(partial(next_step, steps))
        assert isinstance(progress, LoadProgress)
        self._report(entry, progress)
        return progress.total

    async def _finish(self, entry: ModelEntry) -> LoadedModel:
        loaded = await self._run(entry, self._begun[entry.path])
        del self._begun[entry.path]
        return loaded

    async def _run(self, entry: ModelEntry, steps: Generator[LoadProgress | None, None, T]) -> T:
        """Run steps to completion, reporting progress; return their result."""
        while True:
            result = await self._loader.on_engine(partial(next_step, steps))
            if isinstance(result, LoadProgress):
                self._report(entry, result)
            elif result is not None:
                return result

    async def _drop(self, *paths: Path) -> None:
        begun = [self._begun.pop(path) for path in paths if path in self._begun]

        def free() -> None:
            while begun:
                begun.pop().close()
            release_memory()

        if begun:
            await self._loader.on_engine(free)

    async def _read_head(self, target: LoadedModel) -> Head | Reason:
        """Return the chosen head, else the target's own, or a reason.

        Raises BadRequest if a request named the head.
        """
        choice = self._choice
        try:
            files = await asyncio.to_thread(find_head, choice, target)
            if isinstance(files, Reason):
                return files
            from omlx.models.pool.head import head_bytes, head_steps  # noqa: PLC0415 — as below

            size = partial(head_bytes, files, target.model)
            await self._make_room(await self._loader.on_engine(size))
            return await self._run(
                choice.target, head_steps(files, target.model, self._settings.dtype)
            )
        except (ModelError, Overloaded) as error:
            if choice.requested and choice.head is not None:
                raise BadRequest(error.code, param="draft_model", **error.params) from error
            return error.reason

    def _identity(self) -> ModelIdentity:
        """Read the identity of a target just loaded. Raises ModelError."""
        entry = self._choice.target
        try:
            return model_identity(entry.path, self._settings)
        except OSError as error:
            detail = str(error.strerror)
            raise ModelError("model.unreadable", model=entry.id, detail=detail) from error

    # -- on the engine thread ----------------------------------------------------------------------

    def _strict_steps(self, target: LoadedModel, costs: LoadedCosts) -> Iterator[None]:
        """Return the passes that measure a strict model, none if already measured."""
        cost_model = costs.open(target.cost_key(self._choice))
        if cost_model.exactness is not None:
            return iter(())
        longest = limits_of(self._choice.speculation, target).context_length
        return exactness_steps(self._choice.target.id, target, cost_model, longest)

    def _attach(self, parts: _Parts, now: float) -> ResidentModel:
        """Build the loop of models that have been probed, and attach it. Raises as `load`."""
        choice, entry, speculation = self._choice, self._choice.target, self._choice.speculation
        target, limits = parts.target, limits_of(speculation, parts.target)
        loop = self._build(parts, limits)
        snapshot = loop.snapshot()
        failure = snapshot.missing.get("draft" if choice.head is None else choice.head_kind)
        if choice.requested and failure is not None:
            loop.close_disks()
            raise BadRequest(failure.code, param="draft_model", **failure.params)
        self._loader.engine.attach(entry.id, loop)
        weights = {entry.path: target}
        used = None if failure is not None else choice.draft
        if used is not None and parts.draft is not None:
            weights[used.path] = parts.draft
        narrow, size = loop.limits.missing_ids, loop.limits.vocab_size
        served = ServedModel(
            id=entry.id,
            tokenizer=target.tokenizer,
            token_bytes=TokenBytes(target.tokenizer),
            vocab_size=size,
            context_length=loop.limits.context_length,
            generates=target.generates,
            stop_ids=target.stop_ids,
            sampling=target.sampling,
            draft=None if used is None else used.id,
            no_draft_reason=failure,
            head_kind=choice.head_kind,
            draft_kind="draft" if used is None else used.drafter or "draft",
            missing=snapshot.missing,
            off_reason=snapshot.off_reason,
            narrow=Reason("model.narrow", {"missing": narrow, "size": size}) if narrow else None,
            vision=target.vision,
            speculation=speculation,
            identity=replace(parts.identity, kv_bits=str(target.facts.kv_bits or "")),
            kv_cache=KVCacheFacts.of(target.facts),
            cost_model=loop.cost_model,
        )
        log_loaded(served)
        dtype, costs = self._settings.dtype, parts.costs
        return ResidentModel(entry, served, loop, limits, dtype, weights, costs, now)

    def _build(self, parts: _Parts, limits: Limits) -> EngineLoop:
        from omlx.engine.build import build_loop  # noqa: PLC0415 — see `import_mlx_lm`
        from omlx.models.pool.head import heads_by_kind  # noqa: PLC0415 — as above

        choice, target, draft = self._choice, parts.target, parts.draft
        heads = heads_by_kind(choice, target.model, target.facts.vocab_size, parts.head)
        with parts.disks.opened(limits.block_tokens) as tiers:
            return build_loop(
                target.model,
                target.vocab_size,
                limits,
                draft=draft.model if draft is not None else None,
                draft_name=choice.draft_model.id if choice.draft_model is not None else None,
                no_draft_reason=choice.reason,
                heads=heads,
                cost_model=parts.costs.open(target.cost_key(choice)),
                memory=self._loader.memory,
                facts=target.facts,
                runner=None if target.stage is None else target.stage.runner(),
                vision=None if target.vision.reader is None else target.vision.reader.sibling(),
                disks=tiers,
                draft_shape=draft.facts.shape if draft is not None else None,
            )


async def _uninterrupted(work: Coroutine[Any, Any, T]) -> T:
    """Wait for `work` even if cancelled: its result changes state and must not be lost."""
    task = asyncio.ensure_future(work)
    while True:
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise
