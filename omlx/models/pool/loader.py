"""Loading: from a chosen target and draft to a resident model with its engine loop.

    begin to read (total size) ─► make room ─► read in portions ─► probe ─► build the loop

Every mlx call runs on the engine thread, one portion or one pass between two engine steps, so that
the streams of other models continue. Tokenizers are read on other threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from omlx.engine.disk.cache import DiskCache
from omlx.engine.disk.folder import Fingerprint
from omlx.engine.disk.tier import DiskTier
from omlx.engine.limits import Limits
from omlx.engine.memory import MemoryGuard
from omlx.engine.piece import Layout
from omlx.engine.thread import EngineThread
from omlx.errors import (
    BadRequest,
    EngineDead,
    ModelError,
    Overloaded,
    Param,
    ProbeFailed,
    Reason,
)
from omlx.models.catalog.entry import ModelEntry
from omlx.models.package.tokenizer import read_tokenizer
from omlx.models.pool.cost_file import CostFiles, CostKey, LoadedCosts, machine
from omlx.models.pool.draft_choice import DraftChoice, WeightsOf
from omlx.models.pool.footprint import release_memory
from omlx.models.pool.load_weights import (
    Dtype,
    LoadedModel,
    LoadProgress,
    LoadSteps,
    check_checkpoint,
    load_steps,
)
from omlx.models.pool.prefix_disk import prefix_fingerprint
from omlx.models.pool.resident import ResidentModel, ServedModel
from omlx.models.pool.speculation_config import SpeculationConfig
from omlx.text.detokenize import TokenBytes

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

T = TypeVar("T")
log = logging.getLogger("omlx.models")

MakeRoom = Callable[[int], Awaitable[None]]
"""Reserves so many bytes. Raises ModelError or Overloaded if they cannot be made free."""

Report = Callable[[ModelEntry, LoadProgress], None]


class WeightReader(Protocol):
    """The signature of `load_steps`."""

    def __call__(
        self,
        entry: ModelEntry,
        dtype: Dtype,
        *,
        tokenizer: TokenizerWrapper | None,
        trusted: bool,
        sees: bool,
    ) -> LoadSteps: ...


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
        dtype = choice.speculation.settings.dtype
        reading = _Reading(self._engine, self._read, report, dtype)
        try:
            target, draft, choice = await self._read_both(choice, reading, weights_of, make_room)
            costs = previous.costs if previous is not None else LoadedCosts(self._costs)
            disk = await asyncio.to_thread(self._disk_of, choice, target)
            resident = await _uninterrupted(
                self._on_engine(partial(self._attach, choice, target, draft, costs, disk, now))
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

    async def _read_both(
        self, choice: DraftChoice, reading: _Reading, weights_of: WeightsOf, make_room: MakeRoom
    ) -> tuple[LoadedModel, LoadedModel | None, DraftChoice]:
        target, draft = weights_of(choice.target, reading.dtype), None
        vision = choice.speculation.settings.vision
        if target is not None and not target.sight.follows(vision=vision):
            target = None
        nbytes = 0 if target is not None else await reading.begin(choice.target, choice)
        if choice.draft is not None:
            failure = None
            try:
                draft = weights_of(choice.draft, reading.dtype)
                draft_bytes = 0 if draft is not None else await reading.begin(choice.draft, choice)
                await make_room(nbytes + draft_bytes)
                draft = draft or await reading.finish(choice.draft)
            except (ModelError, Overloaded) as error:
                failure = error.message
                if choice.requested and isinstance(error, ProbeFailed):
                    code = "spec.off.draft_failed"
                    raise BadRequest(code, param="draft_model", detail=failure) from error
                if choice.requested:
                    if error.params.get("model") == choice.draft.id:
                        error.param = "draft_model"
                    raise
            if failure is not None:  # the error is gone, and what its traceback held in memory
                await reading.drop(choice.draft)
                choice = choice.without_draft(failure)
        if target is None:
            await make_room(nbytes)
            target = await reading.finish(choice.target)
        return target, draft, choice

    def remove_prefixes(self, model: str) -> None:
        """Delete from disk the prefixes of a model that is not loaded. Any thread may call."""
        if isinstance(self._disks, DiskCache):
            self._disks.remove(model)

    def _disk_of(self, choice: DraftChoice, target: LoadedModel) -> Fingerprint | Reason | None:
        """Return what the target's prefixes on disk depend on, or why there are none."""
        if target.stage is not None:
            return Reason("prefix.disk.off.stages")
        if not isinstance(self._disks, DiskCache):
            return self._disks
        dtype = choice.speculation.settings.dtype
        try:
            return prefix_fingerprint(choice.target, "target", dtype, target.facts.layout)
        except OSError as error:
            return Reason("prefix.disk.off.failed", {"detail": str(error)})

    async def _on_engine(self, work: Callable[[], T]) -> T:
        return await asyncio.wrap_future(self._engine.call(work))

    # -- on the engine thread ----------------------------------------------------------------------

    def _attach(
        self,
        choice: DraftChoice,
        target: LoadedModel,
        draft: LoadedModel | None,
        costs: LoadedCosts,
        disk: Fingerprint | Reason | None,
        now: float,
    ) -> ResidentModel:
        """Build the loop of models that have been probed, and attach it. Raises as `load`."""
        from omlx.engine.build import build_loop  # noqa: PLC0415 — see `import_mlx_lm`

        entry, speculation = choice.target, choice.speculation
        dtype = speculation.settings.dtype
        limits = limits_of(speculation, target.context_length)
        stage, sight, where = target.stage, target.sight, machine()
        if stage is not None:
            where = f"{where} {stage.layout}"  # costs in stages are no others' costs
        loop = build_loop(
            target.model,
            target.vocab_size,
            limits,
            draft=draft.model if draft is not None else None,
            draft_name=choice.draft.id if choice.draft is not None else None,
            no_draft_reason=choice.reason,
            cost_model=costs.open(
                CostKey(entry.id, dtype, target.size_bytes, where, version("mlx"))
            ),
            memory=self._memory,
            facts=target.facts,
            runner=None if stage is None else stage.runner(),
            vision=None if sight.vision is None else sight.vision.sibling(),
            disk=self._open_disk(disk, target.facts.layout, limits),
        )
        snapshot = loop.snapshot()
        failure = snapshot.no_draft_reason
        if choice.requested and failure is not None:
            raise BadRequest(failure.code, param="draft_model", **failure.params)
        self._engine.attach(entry.id, loop)
        weights, draft_id = {entry.path: target}, None
        if draft is not None and choice.draft is not None and failure is None:
            weights[choice.draft.path], draft_id = draft, choice.draft.id
        served = ServedModel(
            id=entry.id,
            tokenizer=target.tokenizer,
            token_bytes=TokenBytes(target.tokenizer),
            vocab_size=loop.limits.vocab_size,
            context_length=loop.limits.context_length,
            stop_ids=target.stop_ids,
            sampling=target.sampling,
            draft=draft_id,
            no_draft_reason=failure,
            no_head_reason=snapshot.no_head_reason,
            off_reason=snapshot.off_reason,
            narrow=_narrow(loop.limits),
            sight=sight,
            speculation=speculation,
        )
        _log_loaded(served)
        return ResidentModel(entry, served, loop, limits, dtype, weights, costs, now)

    def _open_disk(
        self, disk: Fingerprint | Reason | None, layout: Layout, limits: Limits
    ) -> DiskTier | Reason | None:
        if isinstance(self._disks, DiskCache) and isinstance(disk, Fingerprint):
            return self._disks.open(disk, layout, limits.block_tokens)
        return None if isinstance(disk, Fingerprint) else disk

    def _detach(self, resident: ResidentModel) -> None:
        self._engine.detach(resident.entry.id)
        resident.costs.close()
        resident.weights.clear()
        del resident.loop
        log.info("unloaded", extra={"fields": {"model": resident.entry.id}})
        release_memory()


class _Reading:
    """Weights being read: `begin` returns how many bytes they will be, `finish` reads them."""

    def __init__(
        self, engine: EngineThread, read: WeightReader, report: Report, dtype: Dtype
    ) -> None:
        self.dtype = dtype
        self._engine = engine
        self._read = read
        self._report = report
        self._begun: dict[Path, LoadSteps] = {}

    async def begin(self, entry: ModelEntry, choice: DraftChoice) -> int:
        await asyncio.to_thread(check_checkpoint, entry)
        tokenizer = choice.tokenizers.get(entry.path)
        if tokenizer is None:
            tokenizer = await asyncio.to_thread(read_tokenizer, entry)
        settings, is_target = choice.speculation.settings, entry == choice.target
        steps = self._read(
            entry,
            self.dtype,
            tokenizer=tokenizer,
            trusted=settings.trust_remote_code and is_target,
            sees=settings.vision and is_target,
        )
        self._begun[entry.path] = steps
        progress = None
        while progress is None:  # others are asked first whether they can read it too
            progress = await self._next(steps)
        assert isinstance(progress, LoadProgress)
        self._report(entry, progress)
        return progress.total

    async def finish(self, entry: ModelEntry) -> LoadedModel:
        steps = self._begun[entry.path]
        while True:
            result = await self._next(steps)
            if isinstance(result, LoadedModel):
                del self._begun[entry.path]
                return result
            if result is not None:
                self._report(entry, result)

    async def drop(self, entry: ModelEntry) -> None:
        """Stop reading one model and free what was read of it."""
        steps = self._begun.pop(entry.path, None)
        if steps is not None:
            closing = self._engine.call(partial(_close_readings, [steps]))
            await asyncio.wrap_future(closing)

    async def close(self) -> None:
        """Stop whatever was begun and not finished."""
        if not self._begun:
            return
        unfinished = list(self._begun.values())
        self._begun.clear()
        with suppress(EngineDead):
            closing = self._engine.call(partial(_close_readings, unfinished))
            await asyncio.shield(asyncio.wrap_future(closing))

    async def _next(self, steps: LoadSteps) -> LoadProgress | LoadedModel | None:
        return await asyncio.wrap_future(self._engine.call(partial(_step, steps)))


def _narrow(limits: Limits) -> Reason | None:
    """Return how many ids of the tokenizer the model has no row for; None if it has all."""
    if not limits.missing_ids:
        return None
    params: dict[str, Param] = {"missing": limits.missing_ids, "size": limits.vocab_size}
    return Reason("model.narrow", params)


def _log_loaded(served: ServedModel) -> None:
    fields = {"model": served.id}
    if served.narrow is not None:
        log.warning(served.narrow.message, extra={"fields": fields})
    blind = served.sight.off_reason
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


def limits_of(speculation: SpeculationConfig, context_length: int) -> Limits:
    """Return the limits of a model made for `context_length` tokens.

    The budget of its prefix cache is set later, when it shares memory with other models.
    """
    settings = speculation.settings
    return Limits(
        context_length=min(context_length, settings.max_context or context_length),
        max_rows=settings.max_concurrent_requests,
        max_waiting=settings.max_waiting,
        prefill_chunk=settings.prefill_chunk,
        prefix_bytes=0,
    )


def _step(steps: LoadSteps) -> LoadProgress | LoadedModel | None:
    try:
        return next(steps)
    except StopIteration as finished:
        loaded: LoadedModel = finished.value
        return loaded


def _close_readings(readings: list[LoadSteps]) -> None:
    for reading in readings:
        reading.close()
    readings.clear()
    release_memory()
