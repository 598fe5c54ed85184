"""Weights being read on the engine thread, one portion between two engine steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from omlx.engine.thread import EngineThread
from omlx.errors import EngineDead
from omlx.models.catalog.entry import ModelEntry
from omlx.models.heads.files import HeadFiles
from omlx.models.package.tokenizer import read_tokenizer
from omlx.models.pool.draft_choice import DraftChoice
from omlx.models.pool.footprint import release_memory
from omlx.models.pool.load_weights import (
    Dtype,
    LoadedModel,
    LoadProgress,
    LoadSteps,
    check_checkpoint,
)
from omlx.models.pool.read_head import head_steps

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from omlx.models.heads.module import HeadModule

Y = TypeVar("Y")
R = TypeVar("R")

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


class Reading:
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

    async def head(self, entry: ModelEntry, files: HeadFiles, target: LoadedModel) -> HeadModule:
        """Read a draft head of a target. Raises ModelError."""
        steps = head_steps(files, target, self.dtype)
        while True:
            result = await asyncio.wrap_future(self._engine.call(partial(_step, steps)))
            if not isinstance(result, LoadProgress):
                return result
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


def _step(steps: Generator[Y, None, R]) -> Y | R:
    try:
        return next(steps)
    except StopIteration as finished:
        loaded: R = finished.value
        return loaded


def _close_readings(readings: list[LoadSteps]) -> None:
    for reading in readings:
        reading.close()
    readings.clear()
    release_memory()
