"""Settings and packages that another process writes while models are loaded."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from omlx.engine.thread import EngineThread
from omlx.models.catalog.discovery import BUNDLED, Folder, scan_places
from omlx.models.catalog.package import FILE, DeclaredDraftModel, write_package
from omlx.models.catalog.reference import Reference
from omlx.models.pool.load_queue import LoadJob
from omlx.models.pool.pool import Pool
from omlx.settings.configuration import ConfigurationWatcher
from omlx.settings.schema import Settings
from omlx.settings.store import GLOBAL_FILE, Store
from omlx.telemetry.log import fields_of
from tests.models.conftest import engine
from tests.models.pools import make_pool
from tests.models.test_pool import DRAFT, TARGET, pool

__all__ = ["engine"]


class Watch:
    """A watcher over a pool; `check` returns what the pool has to load again."""

    def __init__(self, models: Pool) -> None:
        self._models = models
        self._loadings: list[LoadJob] = []
        self._watcher = ConfigurationWatcher(
            models.catalog.live,
            lambda: [resident.entry.path / FILE for resident in models.residents],
            self._apply,
        )

    async def check(self) -> list[LoadJob]:
        self._loadings = []
        await self._watcher.check()
        return self._loadings

    async def _apply(self) -> None:
        self._loadings = await self._models.reconfigure()


def sampling_and_draft(models: Pool) -> tuple[float | None, int | None]:
    """Return temperature and longest draft of the loaded model."""
    settings: Settings = models.loaded[0].speculation.settings
    return settings.temperature, settings.draft_max


async def test_settings_of_another_process_are_applied(
    engine: EngineThread, tmp_path: Path
) -> None:
    async with pool(engine, home=tmp_path) as models:
        watch = Watch(models)
        (await models.lease()).release()
        assert await watch.check() == []
        assert sampling_and_draft(models) == (None, None)
        Store(tmp_path).patch({"temperature": 0.5, "draft_max": 3})
        Store(tmp_path).patch({"draft_model": DRAFT, "temperature": 0.25}, TARGET)
        (change,) = await watch.check()
        assert change.task is not None
        await change.task
        assert sampling_and_draft(models) == (0.25, 3)
        (lease := await models.lease()).release()
        assert lease.served.draft == DRAFT


async def test_an_invalid_file_is_ignored_until_it_is_repaired(
    engine: EngineThread, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def logged() -> list[str]:
        records = [
            record for record in caplog.records if record.getMessage() == "settings not applied"
        ]
        return [fields_of(record)["code"] for record in records]

    async with pool(engine, home=tmp_path) as models:
        store, file = Store(tmp_path), tmp_path / GLOBAL_FILE
        watch = Watch(models)
        assert store.read().notes == ()
        (await models.lease()).release()
        store.patch({"temperature": 0.5})
        valid = file.read_bytes()
        await watch.check()
        for invalid, codes in (
            (valid[:-5], ["config.broken"]),
            (valid.replace(b"temperature", b"temperatur"), ["config.broken", "config.key"]),
        ):
            file.write_bytes(invalid)
            assert await watch.check() == []
            store.patch({"draft_max": 3}, TARGET)
            await watch.check()
            assert sampling_and_draft(models) == (0.5, 3)
            assert logged() == codes
        file.write_bytes(valid.replace(b"0.5", b"0.25"))
        await watch.check()
        assert sampling_and_draft(models) == (0.25, 3)
        assert logged() == codes


async def test_readers_see_a_snapshot_until_the_next_one_is_published(
    engine: EngineThread, tmp_path: Path
) -> None:
    async with pool(engine, home=tmp_path) as models:
        watch, live = Watch(models), models.catalog.live
        before = live.current
        Store(tmp_path).patch({"temperature": 0.5})
        assert live.current is before
        await watch.check()
        assert live.current.resolve()["temperature"].value == 0.5
        assert before.resolve()["temperature"].value is None
        live.patch({"temperature": 0.75})
        assert live.current.resolve()["temperature"].value == 0.75


async def test_a_written_package_is_applied(engine: EngineThread, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(BUNDLED / TARGET, tmp_path / "models/big"))
    registry = scan_places([Folder("here", tmp_path / "models"), Folder("bundled", BUNDLED)])

    models = make_pool(engine, registry, Settings(), default="big")
    watch = Watch(models)
    (await models.lease()).release()
    assert await watch.check() == []
    for change, draft in (
        (
            lambda: write_package(
                folder, DeclaredDraftModel(Reference(DRAFT), None, None), "small"
            ),
            DRAFT,
        ),
        ((folder / FILE).unlink, None),
    ):
        change()
        (loading,) = await watch.check()
        assert loading.task is not None
        await loading.task
        assert models.loaded[0].draft == draft
        assert await watch.check() == []
    await models.unload("big")
