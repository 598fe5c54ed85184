"""Settings that another process keeps while models are loaded."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from omlx.engine.thread import EngineThread
from omlx.models.catalog.discovery import BUNDLED, scan_places
from omlx.models.catalog.places import Folder
from omlx.models.catalog.reference import Reference
from omlx.models.package.package import FILE, DraftModel
from omlx.models.package.write_package import write_package
from omlx.models.pool.pool import Pool
from omlx.models.pool.settings_watcher import SettingsWatcher
from omlx.settings.schema import Settings
from omlx.settings.store import GLOBAL_FILE, Store
from omlx.telemetry.log import fields_of
from tests.models.test_pool import DRAFT, TARGET, engine, pool

__all__ = ["engine"]


def test_what_is_kept_by_others_is_taken_up(engine: EngineThread, tmp_path: Path) -> None:
    async def run() -> None:
        async with pool(engine, home=tmp_path) as models:
            rereading = SettingsWatcher(models, Store(tmp_path))
            (await models.lease()).release()
            before = told(models.loaded[0].speculation.settings)
            await rereading.look()
            assert told(models.loaded[0].speculation.settings) == before == (None, None)
            Store(tmp_path).patch({"temperature": 0.5, "draft_max": 3})
            Store(tmp_path).patch({"draft_model": DRAFT, "temperature": 0.25}, TARGET)
            (change,) = await rereading.look()
            assert change.task is not None
            await change.task
            assert told(models.loaded[0].speculation.settings) == (0.25, 3)
            (lease := await models.lease()).release()
            assert lease.served.draft == DRAFT

    asyncio.run(run())


def test_a_file_that_cannot_be_is_not_taken_up_and_the_next_one_is(
    engine: EngineThread, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def logged() -> list[str]:
        records = [
            record for record in caplog.records if record.getMessage() == "settings not taken up"
        ]
        return [fields_of(record)["code"] for record in records]

    async def run() -> None:
        async with pool(engine, home=tmp_path) as models:
            store, file = Store(tmp_path), tmp_path / GLOBAL_FILE
            rereading = SettingsWatcher(models, store)
            assert store.validate() == []
            (await models.lease()).release()
            store.patch({"temperature": 0.5})
            good = file.read_bytes()
            for broken, codes in (
                (good[:-5], ["config.broken"]),
                (good.replace(b"temperature", b"temperatur"), ["config.broken", "config.key"]),
            ):
                file.write_bytes(broken)
                assert await rereading.look() == []
                store.patch({"draft_max": 3}, TARGET)
                await rereading.look()
                assert told(models.loaded[0].speculation.settings) == (None, 3)
                assert logged() == codes
            file.write_bytes(good)
            await rereading.look()
            assert told(models.loaded[0].speculation.settings) == (0.5, 3)
            assert logged() == codes

    asyncio.run(run())


def test_a_package_that_somebody_writes_is_taken_up(engine: EngineThread, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(BUNDLED / TARGET, tmp_path / "models/big"))
    registry = scan_places([Folder("here", tmp_path / "models"), Folder("bundled", BUNDLED)])

    async def run() -> None:
        models = Pool(engine, registry, Settings(), default="big")
        rereading = SettingsWatcher(models, Store(tmp_path / "home"))
        (await models.lease()).release()
        assert await rereading.look() == []
        for change, draft in (
            (
                lambda: write_package(folder, DraftModel(Reference(DRAFT), None, None), "small"),
                DRAFT,
            ),
            ((folder / FILE).unlink, None),
        ):
            change()
            (loading,) = await rereading.look()
            assert loading.task is not None
            await loading.task
            assert models.loaded[0].draft == draft
            assert await rereading.look() == []
        await models.unload("big")

    asyncio.run(run())


def told(settings: Settings) -> tuple[float | None, int | None]:
    return settings.temperature, settings.draft_max
