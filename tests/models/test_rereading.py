"""Settings that another process keeps while models are loaded."""

from __future__ import annotations

import asyncio
from pathlib import Path

from omlx.engine.thread import EngineThread
from omlx.models.rereading import Rereading
from omlx.settings.schema import Settings
from omlx.settings.store import GLOBAL_FILE, Store
from tests.models.test_pool import DRAFT, TARGET, engine, pool

__all__ = ["engine"]


def test_what_is_kept_by_others_is_taken_up(engine: EngineThread, tmp_path: Path) -> None:
    async def run() -> None:
        async with pool(engine, home=tmp_path) as models:
            rereading = Rereading(models, Store(tmp_path))
            (await models.lease()).release()
            before = told(models.loaded[0].speculative.settings)
            await rereading.look()
            assert told(models.loaded[0].speculative.settings) == before == (None, None)
            Store(tmp_path).patch({"temperature": 0.5, "draft_max": 3})
            Store(tmp_path).patch({"draft_model": DRAFT, "temperature": 0.25}, TARGET)
            (change,) = await rereading.look()
            assert change.task is not None
            await change.task
            assert told(models.loaded[0].speculative.settings) == (0.25, 3)
            (lease := await models.lease()).release()
            assert lease.served.draft == DRAFT

    asyncio.run(run())


def test_a_file_that_cannot_be_is_not_taken_up_and_the_next_one_is(engine: EngineThread, tmp_path: Path) -> None:
    async def run() -> None:
        async with pool(engine, home=tmp_path) as models:
            rereading, store = Rereading(models, Store(tmp_path)), Store(tmp_path)
            (await models.lease()).release()
            store.patch({"temperature": 0.5})
            good = (tmp_path / GLOBAL_FILE).read_bytes()
            (tmp_path / GLOBAL_FILE).write_bytes(good.replace(b"temperature", b"temperatur"))
            await rereading.look()
            assert told(models.loaded[0].speculative.settings) == (None, None)
            (tmp_path / GLOBAL_FILE).write_bytes(good)
            await rereading.look()
            assert told(models.loaded[0].speculative.settings) == (0.5, None)

    asyncio.run(run())


def told(settings: Settings) -> tuple[float | None, int | None]:
    return settings.temperature, settings.draft_max
