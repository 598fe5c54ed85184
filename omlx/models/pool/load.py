"""From a model's directory to a loop that serves it.

    choose a draft ─► begin to read, which says how much ─► make room ─► read, a portion at a time ─► loop

Every mlx call runs on the engine thread, one portion between two steps of the models that are at work, so that their
streams go on. Tokenizers and configs are read on other threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from omlx.engine.limits import Limits
from omlx.engine.memory import MemoryGuard
from omlx.engine.thread import EngineThread
from omlx.engine.types import Reason
from omlx.errors import BadRequest, EngineDead, ModelError, Overloaded
from omlx.models.catalog.entry import ModelEntry
from omlx.models.package.compatibility import checkpoint_mismatch, tokenizer_mismatch
from omlx.models.package.tokenizer import read_tokenizer
from omlx.models.pool.cost_file import CostFiles, CostKeeper, CostKey, machine
from omlx.models.pool.footprint import release_memory
from omlx.models.pool.load_weights import Dtype, LoadedWeights, LoadProgress, load_steps
from omlx.models.pool.resident import ResidentModel, ServedModel
from omlx.models.pool.speculation_config import SpeculationConfig
from omlx.text.detokenize import TokenBytes

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

T = TypeVar("T")
log = logging.getLogger("omlx.models")

Held = Callable[[ModelEntry, Dtype], LoadedWeights | None]
"""The weights of a model, if anybody in memory has them."""

MakeRoom = Callable[[int], Awaitable[None]]
"""Sees to it that so many bytes are free. Raises ModelError if they cannot be."""

Progress = Callable[[ModelEntry, LoadProgress], None]
Reading: TypeAlias = Generator[LoadProgress, None, LoadedWeights]


class Reader(Protocol):
    """As `load_steps` reads a model."""

    def __call__(
        self, entry: ModelEntry, dtype: Dtype, *, tokenizer: TokenizerWrapper | None, trusted: bool
    ) -> Reading: ...


@dataclass(frozen=True, slots=True)
class Choice:
    """What is to be opened: a target, and a draft or the reason why there is none. `asked`: a request named it.

    `tokenizers` are those that had to be read to know, by directory.
    """

    entry: ModelEntry
    configured: SpeculationConfig
    draft: ModelEntry | None = None
    reason: Reason | None = None
    asked: bool = False
    tokenizers: Mapping[Path, TokenizerWrapper] = field(default_factory=dict)

    def without_draft(self, code: str, detail: str) -> Choice:
        return replace(self, draft=None, reason=Reason(code, {"detail": detail}))


def choose(
    entry: ModelEntry, configured: SpeculationConfig, wanted: ModelEntry | None, held: Held
) -> Choice:
    """The draft to load, or why there is none. Only a draft that the request itself names must fit.

    Reads the tokenizers of what is not in memory. Raises BadRequest and ModelError.
    """
    draft = wanted or configured.active_draft
    if draft is None:
        return Choice(entry, configured, reason=configured.no_draft_reason)
    choice = Choice(entry, configured, draft, asked=wanted is not None)
    try:
        reason = checkpoint_mismatch(entry, draft)
        if reason is None:
            pair = {
                each.path: _tokenizer(each, configured.settings.dtype, held)
                for each in (entry, draft)
            }
            choice = replace(choice, tokenizers=pair)
            reason = tokenizer_mismatch(pair[entry.path], pair[draft.path])
    except ModelError as error:
        if wanted is not None:
            raise ModelError(error.code, param="draft_model", **error.params) from error
        return choice.without_draft("spec.off.draft_failed", error.message)
    if reason is not None and wanted is not None:
        raise BadRequest(reason.code, param="draft_model", **reason.params)
    return choice if reason is None else replace(choice, draft=None, reason=reason)


def _tokenizer(entry: ModelEntry, dtype: Dtype, held: Held) -> TokenizerWrapper:
    loaded = held(entry, dtype)
    return loaded.tokenizer if loaded is not None else read_tokenizer(entry)


class ModelLoader:
    """`memory` bounds what requests of all models may take. `progress` is told how far a model has been read by `read`.
    `costs` keeps what passes cost.
    """

    def __init__(
        self,
        engine: EngineThread,
        memory: MemoryGuard,
        progress: Progress | None,
        costs: CostFiles | None,
        read: Reader = load_steps,
    ) -> None:
        self._engine = engine
        self._memory = memory
        self._reader = read
        self._progress = progress
        self._costs = costs

    async def open(
        self,
        choice: Choice,
        old: ResidentModel | None,
        held: Held,
        make_room: MakeRoom,
        progress: Progress,
        now: float,
    ) -> ResidentModel:
        """Read what is not in memory yet and put the model to work, in place of `old`, which must be idle.

        Raises ModelError; then `old` serves on. A draft that cannot be read or run, or for which there is no room, is
        a reason, unless a request asked for it: that hears BadRequest or ModelError.
        """
        dtype = choice.configured.settings.dtype
        reading = _Reading(self._engine, self._reader, partial(self._told, progress), dtype)
        try:
            target, draft, choice = await self._read(choice, reading, held, make_room)
            cost_keeper = old.cost_keeper if old is not None else CostKeeper(self._costs)
            opened = await _whole(
                self._run(partial(self._serve, choice, target, draft, cost_keeper, now))
            )
            if draft is not None and opened.served.draft is None:
                del draft
                self._engine.call(release_memory)
            return opened
        finally:
            await reading.close()

    async def close(self, resident: ResidentModel) -> None:
        """Take an idle model out and give its memory back, but for what others use."""
        await asyncio.shield(self._run(partial(self._close, resident)))

    async def _read(
        self, choice: Choice, reading: _Reading, held: Held, make_room: MakeRoom
    ) -> tuple[LoadedWeights, LoadedWeights | None, Choice]:
        target, draft = held(choice.entry, reading.dtype), None
        need = 0 if target is not None else await reading.begin(choice.entry, choice)
        if choice.draft is not None:
            try:
                draft = held(choice.draft, reading.dtype)
                more = 0 if draft is not None else await reading.begin(choice.draft, choice)
                await make_room(need + more)
                draft = draft or await reading.finish(choice.draft)
            except (ModelError, Overloaded) as error:
                if choice.asked:
                    if error.params.get("model") == choice.draft.id:
                        error.param = "draft_model"
                    raise
                await reading.drop(choice.draft)
                choice = choice.without_draft("spec.off.draft_failed", error.message)
        if target is None:
            await make_room(need)
            target = await reading.finish(choice.entry)
        return target, draft, choice

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.wrap_future(self._engine.call(work))

    def _told(self, progress: Progress, entry: ModelEntry, done: LoadProgress) -> None:
        progress(entry, done)
        if self._progress is not None:
            self._progress(entry, done)

    # -- on the engine thread ------------------------------------------------------------------------------------

    def _serve(
        self,
        choice: Choice,
        target: LoadedWeights,
        draft: LoadedWeights | None,
        cost_keeper: CostKeeper,
        now: float,
    ) -> ResidentModel:
        from omlx.engine.loop import EngineLoop  # noqa: PLC0415 — see `loader.import_mlx_lm`

        entry, configured = choice.entry, choice.configured
        limits = limits_of(configured, target.context_length)
        loop = EngineLoop(
            target.model,
            target.vocab_size,
            limits,
            draft=draft.model if draft is not None else None,
            draft_name=choice.draft.id if choice.draft is not None else None,
            no_draft=choice.reason,
            cost_model=cost_keeper.open(_cost_key(entry, configured.settings.dtype, target)),
            memory=self._memory,
        )
        told = loop.snapshot()
        if choice.asked and told.no_draft is not None:
            raise BadRequest(told.no_draft.code, param="draft_model", **told.no_draft.params)
        self._engine.attach(entry.id, loop)
        weights, name = {entry.path: target}, None
        if draft is not None and choice.draft is not None and told.no_draft is None:
            weights[choice.draft.path], name = draft, choice.draft.id
        served = ServedModel(
            id=entry.id,
            tokenizer=target.tokenizer,
            token_bytes=TokenBytes(target.tokenizer),
            vocab_size=target.vocab_size,
            context_length=loop.limits.context_length,
            stop_ids=target.stop_ids,
            sampling=target.sampling,
            draft=name,
            no_draft=told.no_draft,
            off=told.off,
            speculation=configured,
        )
        fields = {"model": entry.id} if name is None else {"model": entry.id, "draft": name}
        log.info("loaded", extra={"fields": fields})
        return ResidentModel(
            entry, served, loop, limits, configured.settings.dtype, weights, cost_keeper, now
        )

    def _close(self, resident: ResidentModel) -> None:
        self._engine.detach(resident.entry.id)
        resident.cost_keeper.close()
        resident.weights.clear()
        del resident.loop
        log.info("unloaded", extra={"fields": {"model": resident.entry.id}})
        release_memory()


class _Reading:
    """Weights on their way into memory: `begin` says how many bytes they will be, `finish` reads them."""

    def __init__(self, engine: EngineThread, reader: Reader, told: Progress, dtype: Dtype) -> None:
        self.dtype = dtype
        self._engine = engine
        self._reader = reader
        self._told = told
        self._open: dict[Path, Reading] = {}

    async def begin(self, entry: ModelEntry, choice: Choice) -> int:
        tokenizer = choice.tokenizers.get(entry.path)
        if tokenizer is None:
            tokenizer = await asyncio.to_thread(read_tokenizer, entry)
        trusted = choice.configured.settings.trust_remote_code and entry == choice.entry
        steps = self._open[entry.path] = self._reader(
            entry, self.dtype, tokenizer=tokenizer, trusted=trusted
        )
        progress = await self._next(steps)
        assert isinstance(progress, LoadProgress)
        self._told(entry, progress)
        return progress.total

    async def finish(self, entry: ModelEntry) -> LoadedWeights:
        steps = self._open[entry.path]
        while isinstance(step := await self._next(steps), LoadProgress):
            self._told(entry, step)
        del self._open[entry.path]
        return step

    async def drop(self, entry: ModelEntry) -> None:
        """Let go of one of them."""
        if (steps := self._open.pop(entry.path, None)) is not None:
            await asyncio.wrap_future(self._engine.call(steps.close))

    async def close(self) -> None:
        """Let go of whatever was begun and not finished."""
        if self._open:
            left = list(self._open.values())
            self._open.clear()
            with suppress(EngineDead):
                await asyncio.shield(asyncio.wrap_future(self._engine.call(partial(_let_go, left))))

    async def _next(self, steps: Reading) -> LoadProgress | LoadedWeights:
        return await asyncio.wrap_future(self._engine.call(partial(_step, steps)))


async def _whole(work: Coroutine[Any, Any, T]) -> T:
    """What has come so far is finished, cancelled or not: its outcome is state."""
    task = asyncio.ensure_future(work)
    while True:
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise


def limits_of(configured: SpeculationConfig, context_length: int) -> Limits:
    """The bounds of a model that was made for `context_length` tokens. What its prefixes may take is told later."""
    settings = configured.settings
    return Limits(
        context_length=min(context_length, settings.max_context or context_length),
        max_rows=settings.max_concurrent_requests,
        max_waiting=settings.max_waiting,
        prefill_chunk=settings.prefill_chunk,
        prefix_bytes=0,
    )


def _step(steps: Reading) -> LoadProgress | LoadedWeights:
    try:
        return next(steps)
    except StopIteration as finished:
        loaded: LoadedWeights = finished.value
        return loaded


def _let_go(readings: list[Reading]) -> None:
    for reading in readings:
        reading.close()
    readings.clear()
    release_memory()


def _cost_key(entry: ModelEntry, dtype: Dtype, target: LoadedWeights) -> CostKey:
    return CostKey(entry.id, dtype, target.size_bytes, machine(), version("mlx"))
