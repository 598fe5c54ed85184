"""Loading: from a chosen target and draft to a resident model with its engine loop.

    begin to read (total size) ─► make room ─► read in portions ─► probe ─► build the loop

Every mlx call runs on the engine thread, one portion or one pass between two engine steps, so that
the streams of other models continue. Tokenizers are read on other threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, TypeVar

from omlx.engine.device.gpu import fill_workspace
from omlx.engine.disk.tier import DiskCache
from omlx.engine.memory import MemoryGuard
from omlx.engine.thread import EngineThread
from omlx.engine.types import Limits
from omlx.errors import BadRequest, ModelError, Overloaded, Param, ProbeFailed, Reason
from omlx.models.catalog.identity import ModelIdentity, model_identity
from omlx.models.catalog.registry import ModelEntry
from omlx.models.pool.cost_file import CostFiles, CostKey, LoadedCosts, machine
from omlx.models.pool.footprint import release_memory
from omlx.models.pool.load_weights import (
    LoadedModel,
    Reading,
    Report,
    WeightReader,
    exactness_steps,
    find_head,
    head_drafter,
    head_steps,
    load_steps,
)
from omlx.models.pool.opening import Dtype, head_bytes
from omlx.models.pool.prefix_disk import ModelDisks, model_disks
from omlx.models.pool.served import ResidentModel, ServedModel
from omlx.models.pool.speculation import DraftChoice, SpeculationConfig
from omlx.settings.schema import STRICT
from omlx.text.tokens import TokenBytes

if TYPE_CHECKING:
    from omlx.engine.loop import EngineLoop
    from omlx.models.pool.head import HeadModule

T = TypeVar("T")
Y = TypeVar("Y")
DONE: Final = object()
log = logging.getLogger("omlx.models")

WeightsOf = Callable[[ModelEntry, Dtype], LoadedModel | None]
"""Returns the weights of a model that is in memory as a target or as a draft."""

MakeRoom = Callable[[int], Awaitable[None]]
"""Reserves so many bytes. Raises ModelError or Overloaded if they cannot be made free."""


class ModelLoader:
    """Loads and unloads models on the engine thread.

    `memory` bounds the requests of all models; `costs` stores the measured costs of passes; `read`
    reads weights; `disks` stores prefixes, or says why they are not stored.
    """

    def __init__(
        self,
        engine: EngineThread,
        memory: MemoryGuard,
        costs: CostFiles | None,
        read: WeightReader = load_steps,
        disks: DiskCache | Reason | None = None,
    ) -> None:
        self._engine = engine
        self._memory = memory
        self._disks = disks
        self._read = read
        self._costs = costs

    async def load(
        self,
        choice: DraftChoice,
        previous: ResidentModel | None,
        weights_of: WeightsOf,
        make_room: MakeRoom,
        report: Report,
        now: float,
    ) -> ResidentModel:
        """Read what is not in memory and attach the model, in place of `previous`, which is idle.

        Raises ModelError, Overloaded, and BadRequest for a requested draft that cannot be run; then
        `previous` continues. Any other draft that cannot be read or run, or for which there is no
        room, becomes a reason.
        """
        await self._on_engine(fill_workspace)  # before memory is judged
        reading = Reading(self._engine, self._read, report, choice.speculation.settings.dtype)
        try:
            target, draft, choice = await self._read_both(choice, reading, weights_of, make_room)
            head = await self._read_head(choice, target, reading, make_room)
            costs = previous.costs if previous is not None else LoadedCosts(self._costs)
            if choice.speculation.settings.exactness == STRICT and target.generates:
                steps = await self._on_engine(partial(_strict_steps, choice, target, costs))
                while await self._on_engine(partial(next, steps, DONE)) is not DONE:
                    pass
            tiers = await asyncio.to_thread(model_disks, self._disks, choice, target, draft)
            identity = await asyncio.to_thread(_identity, choice)
            resident = await _uninterrupted(
                self._on_engine(
                    partial(self._attach, choice, target, draft, head, costs, tiers, identity, now)
                )
            )
            if draft is not None and resident.served.draft is None:
                del draft  # it could not be run; this is the last reference to its weights
                self._engine.call(release_memory)
            return resident
        finally:
            await reading.close()

    async def close(self, resident: ResidentModel) -> None:
        """Detach an idle model and free its memory, except weights that other models share."""
        await asyncio.shield(self._on_engine(partial(self._detach, resident)))

    def remove_prefixes(self, model: str) -> None:
        """Delete from disk the prefixes of a model that is not loaded. Any thread may call."""
        if isinstance(self._disks, DiskCache):
            self._disks.remove(model)

    async def _read_both(
        self, choice: DraftChoice, reading: Reading, weights_of: WeightsOf, make_room: MakeRoom
    ) -> tuple[LoadedModel, LoadedModel | None, DraftChoice]:
        target, draft = weights_of(choice.target, reading.dtype), None
        vision = choice.speculation.settings.vision
        if target is not None and not target.vision.follows(vision=vision):
            target = None
        nbytes = 0 if target is not None else await reading.begin(choice.target, choice)
        if choice.draft_model is not None:
            failure = None
            try:
                draft = weights_of(choice.draft_model, reading.dtype)
                if draft is None:
                    draft_bytes = await reading.begin(choice.draft_model, choice)
                    await make_room(nbytes + draft_bytes)
                    draft = await reading.finish(choice.draft_model)
                else:
                    await make_room(nbytes)
            except (ModelError, Overloaded) as error:
                failure = error.message
                if choice.requested and isinstance(error, ProbeFailed):
                    code = "spec.off.draft_failed"
                    raise BadRequest(code, param="draft_model", detail=failure) from error
                if choice.requested:
                    if error.params.get("model") == choice.draft_model.id:
                        error.param = "draft_model"
                    raise
            if failure is not None:  # the error is gone, and what its traceback held in memory
                await reading.drop(choice.draft_model)
                choice = choice.without_draft(failure)
        if target is None:
            await make_room(nbytes)
            target = await reading.finish(choice.target)
        return target, draft, choice

    async def _read_head(
        self, choice: DraftChoice, target: LoadedModel, reading: Reading, make_room: MakeRoom
    ) -> HeadModule | Reason:
        """Return the head chosen as a draft, else the one that came with the target, or why there
        is none. Raises BadRequest for a requested one.
        """
        try:
            files = await asyncio.to_thread(find_head, choice, target)
            if isinstance(files, Reason):
                return files
            await make_room(await self._on_engine(partial(head_bytes, files, target.model)))
            return await reading.run(choice.target, head_steps(files, target, reading.dtype))
        except (ModelError, Overloaded) as error:
            if choice.requested and choice.head is not None:
                raise BadRequest(error.code, param="draft_model", **error.params) from error
            return Reason(error.code, error.params)

    async def _on_engine(self, work: Callable[[], T]) -> T:
        return await asyncio.wrap_future(self._engine.call(work))

    # -- on the engine thread ----------------------------------------------------------------------

    def _attach(
        self,
        choice: DraftChoice,
        target: LoadedModel,
        draft: LoadedModel | None,
        head: HeadModule | Reason,
        costs: LoadedCosts,
        disks: ModelDisks,
        identity: ModelIdentity,
        now: float,
    ) -> ResidentModel:
        """Build the loop of models that have been probed, and attach it. Raises as `load`."""
        entry, speculation = choice.target, choice.speculation
        dtype, limits = speculation.settings.dtype, limits_of(speculation, target)
        loop = self._build(choice, target, draft, head, costs, limits, disks)
        snapshot = loop.snapshot()
        failure = snapshot.no_draft_reason if choice.head is None else snapshot.no_head_reason
        if choice.requested and failure is not None:
            loop.close_disks()
            raise BadRequest(failure.code, param="draft_model", **failure.params)
        self._engine.attach(entry.id, loop)
        weights = {entry.path: target}
        used = None if failure is not None else choice.draft
        if used is not None and draft is not None:
            weights[used.path] = draft
        missing: dict[str, Param] = {
            "missing": loop.limits.missing_ids,
            "size": loop.limits.vocab_size,
        }
        served = ServedModel(
            id=entry.id,
            tokenizer=target.tokenizer,
            token_bytes=TokenBytes(target.tokenizer),
            vocab_size=loop.limits.vocab_size,
            context_length=loop.limits.context_length,
            generates=target.generates,
            stop_ids=target.stop_ids,
            sampling=target.sampling,
            draft=None if used is None else used.id,
            no_draft_reason=failure,
            no_head_reason=snapshot.no_head_reason,
            off_reason=snapshot.off_reason,
            narrow=Reason("model.narrow", missing) if loop.limits.missing_ids else None,
            vision=target.vision,
            speculation=speculation,
            identity=identity,
            cost_model=loop.cost_model,
        )
        _log_loaded(served)
        return ResidentModel(entry, served, loop, limits, dtype, weights, costs, now)

    def _build(
        self,
        choice: DraftChoice,
        target: LoadedModel,
        draft: LoadedModel | None,
        head: HeadModule | Reason,
        costs: LoadedCosts,
        limits: Limits,
        disks: ModelDisks,
    ) -> EngineLoop:
        from omlx.engine.build import build_loop  # noqa: PLC0415 — see `import_mlx_lm`

        with disks.opened(limits.block_tokens) as tiers:
            return build_loop(
                target.model,
                target.vocab_size,
                limits,
                draft=draft.model if draft is not None else None,
                draft_name=choice.draft_model.id if choice.draft_model is not None else None,
                no_draft_reason=choice.reason,
                head=head_drafter(choice, target, head),
                cost_model=costs.open(_cost_key(choice, target)),
                memory=self._memory,
                facts=target.facts,
                runner=None if target.stage is None else target.stage.runner(),
                vision=None if target.vision.reader is None else target.vision.reader.sibling(),
                disks=tiers,
                draft_shape=draft.facts.shape if draft is not None else None,
            )

    def _detach(self, resident: ResidentModel) -> None:
        self._engine.detach(resident.entry.id)
        resident.costs.close()
        resident.weights.clear()
        del resident.loop
        log.info("unloaded", extra={"fields": {"model": resident.entry.id}})
        release_memory()


def _identity(choice: DraftChoice) -> ModelIdentity:
    """Read what identifies a target that has just been loaded. Raises ModelError."""
    entry = choice.target
    try:
        return model_identity(entry.path, choice.speculation.settings.dtype)
    except OSError as error:
        detail = str(error.strerror)
        raise ModelError("model.unreadable", model=entry.id, detail=detail) from error


def _log_loaded(served: ServedModel) -> None:
    fields = {"model": served.id}
    if served.narrow is not None:
        log.warning(served.narrow.message, extra={"fields": fields})
    blind = served.vision.off_reason
    if blind is not None and blind.code not in ("vision.off.text", "vision.off.setting"):
        log.warning(blind.message, extra={"fields": fields})
    if served.draft is not None:
        fields["draft"] = served.draft
    log.info("loaded", extra={"fields": fields})


async def _uninterrupted(work: Coroutine[Any, Any, T]) -> T:
    """Wait for `work` even if cancelled: its result changes state and must not be lost."""
    task = asyncio.ensure_future(work)
    while True:
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise


def limits_of(speculation: SpeculationConfig, target: LoadedModel) -> Limits:
    """Return the limits of a model with these settings.

    The budget of its prefix cache is set later, when it shares memory with other models.
    """
    settings = speculation.settings
    longest = max(target.longest_context, target.context_length)
    return Limits(
        context_length=min(longest, settings.max_context or target.context_length),
        max_rows=settings.max_concurrent_requests,
        max_waiting=settings.max_waiting,
        prefill_chunk=settings.prefill_chunk,
        prefix_bytes=0,
        generates=target.generates,
        strict=settings.exactness == STRICT and target.generates,
    )


def _strict_steps(choice: DraftChoice, target: LoadedModel, costs: LoadedCosts) -> Iterator[None]:
    """Return the passes that measure a strict model, none if that is known."""
    cost_model = costs.open(_cost_key(choice, target))
    if cost_model.exactness is not None:
        return iter(())
    longest = limits_of(choice.speculation, target).context_length
    return exactness_steps(choice.target.id, target, cost_model, longest)


def _cost_key(choice: DraftChoice, target: LoadedModel) -> CostKey:
    where = machine() if target.stage is None else f"{machine()} {target.stage.layout}"
    dtype = choice.speculation.settings.dtype
    return CostKey(choice.target.id, dtype, target.size_bytes, where, version("mlx"))
