"""Where prefixes lie on disk: which folder is whose, and which ones go."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import NoReturn

import pytest

from omlx.engine.disk.folder import MAX_BYTES, MIN_FREE, CacheFolder, DiskBudget, Fingerprint
from omlx.engine.disk.tier import DiskCache
from omlx.engine.piece import Layout
from omlx.engine.thread import EngineThread
from omlx.errors import EngineDead, ModelError, Reason
from omlx.models.catalog.registry import ModelEntry
from omlx.models.pool.prefix_disk import model_disks, open_disks, prefix_fingerprint, stop_engine
from omlx.settings.schema import Settings
from omlx.storage import Locked
from tests.engine.disk.records import record
from tests.engine.threads import started
from tests.models.pools import make_pool
from tests.models.test_pool import DEMO, DRAFT
from tests.refusals import refused

LAYOUT = Layout(row_bytes=64)


@pytest.fixture
def entry(tmp_path: Path) -> ModelEntry:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).write_bytes(b"{}" * 100)
    return ModelEntry("org/model", folder, "home")


def folder_of(entry: ModelEntry, dtype: str = "auto", layout: Layout = LAYOUT) -> str:
    return prefix_fingerprint(entry, "target", dtype, layout).name


def test_the_folder_follows_from_all_that_rows_depend_on(entry: ModelEntry) -> None:
    first = folder_of(entry)
    assert folder_of(entry) == first
    names = {first, folder_of(entry, "float16"), folder_of(entry, layout=Layout(row_bytes=32))}
    names.add(prefix_fingerprint(entry, "draft", "auto", LAYOUT).name)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (entry.path / name).write_bytes(b"[]" * 100)
        names.add(folder_of(entry))
    weights = entry.path / "model.safetensors"
    os.utime(weights, ns=(1, 1))  # changed in a place that no sample shows
    names.add(folder_of(entry))
    assert len(names) == 8


def test_an_earlier_state_of_a_model_goes_and_others_stay(tmp_path: Path) -> None:
    old = Fingerprint("org/model", "target", {"dtype": "float16"})
    kept = Fingerprint("org/other", "target", {})
    unused = Fingerprint("org/unused", "target", {})
    for fingerprint in (old, kept, unused):
        CacheFolder(tmp_path, fingerprint).close()
    long_ago = time.time() - 40 * 86400
    os.utime(tmp_path / unused.name / "about.json", (long_ago, long_ago))
    new = CacheFolder(tmp_path, Fingerprint("org/model", "target", {"dtype": "float32"}))
    folders = {path.name for path in tmp_path.iterdir() if path.is_dir()}
    assert folders == {kept.name, new.path.name}
    assert (tmp_path.stat().st_mode | new.path.stat().st_mode) & 0o077 == 0
    new.close()


def test_folders_of_another_format_go(tmp_path: Path) -> None:
    for model, format in (("org/old", "1"), ("org/kept", "2")):
        CacheFolder(tmp_path, Fingerprint(model, "target", {"format": format})).close()
    new = CacheFolder(tmp_path, Fingerprint("org/model", "target", {"format": "2"}))
    assert new.others_bytes() > 0
    models = {json.loads(about.read_bytes())["model"] for about in tmp_path.glob("*/about.json")}
    assert models == {"org/kept", "org/model"}
    new.close()


def test_folders_that_hold_something_else_are_left_alone(tmp_path: Path) -> None:
    kept = tmp_path / "pictures" / "one"
    kept.parent.mkdir()
    kept.write_bytes(b"of long ago")
    new = CacheFolder(tmp_path, Fingerprint("org/model", "target", {}))
    assert new.others_bytes() == 0
    assert new.shrink_others(0) == (0, 0)
    assert kept.exists()
    new.close()


def test_a_folder_in_use_is_neither_opened_nor_deleted(tmp_path: Path) -> None:
    fingerprint = Fingerprint("org/model", "target", {})
    first = CacheFolder(tmp_path, fingerprint)
    with pytest.raises(Locked):
        CacheFolder(tmp_path, fingerprint)
    second = CacheFolder(tmp_path, Fingerprint("org/model", "target", {"dtype": "float16"}))
    assert second.shrink_others(0)[1] == 1
    assert first.exists
    first.close()
    assert second.shrink_others(0) == (0, 0)
    second.close()


@pytest.mark.parametrize(
    ("free", "most", "code"),
    [
        (1 << 40, MAX_BYTES, None),
        (MIN_FREE, MIN_FREE // 4, None),
        (MIN_FREE - 1, MIN_FREE // 4, "prefix.disk.off.space"),
    ],
)
def test_the_budget_leaves_the_disk_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, most: int, code: str | None
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda root: SimpleNamespace(free=free))
    room, paused = DiskBudget().of(tmp_path, 0)
    assert room in (most, most - 1)
    assert (paused.code if paused else None) == code
    assert DiskBudget(1000).of(tmp_path, 0) == (1000, None)
    assert DiskBudget(2 * free).of(tmp_path, 7) == (free + 7, None)


def test_what_a_draft_model_stores_goes_with_the_prompts_of_its_target(
    entry: ModelEntry, tmp_path: Path
) -> None:
    disks = DiskCache(tmp_path / "cache", DiskBudget(1 << 20), lambda: None)
    draft, other = (replace(entry, id=id) for id in ("org/draft", "org/other"))
    loaded = SimpleNamespace(stage=None, facts=SimpleNamespace(layout=LAYOUT, kv_bits=None))
    speculation = SimpleNamespace(settings=SimpleNamespace(dtype="auto", exactness="ties"))
    for target in (entry, other):
        choice = SimpleNamespace(target=target, draft_model=draft, speculation=speculation)
        with model_disks(disks, choice, loaded, loaded).opened(64) as tiers:
            for tier in tiers:
                tier.close()
    for worker in disks._workers.values():
        worker.join()

    def folders() -> list[tuple[str, str]]:
        abouts = [json.loads(path.read_bytes()) for path in tmp_path.glob("cache/*/about.json")]
        return sorted((about["model"], about["role"]) for about in abouts)

    others = [("org/other", "draft org/draft"), ("org/other", "target")]
    assert folders() == [("org/model", "draft org/draft"), ("org/model", "target"), *others]
    disks.remove("org/draft")
    disks.remove("org/model")
    assert folders() == others


def test_settings_say_where_and_whether(tmp_path: Path) -> None:
    engine = EngineThread()
    off = open_disks(Settings(home=tmp_path, prefix_disk=0), engine)
    assert off == Reason("prefix.disk.off.setting")
    disks = open_disks(Settings(home=tmp_path, prefix_dir=tmp_path / "other"), engine)
    tier = disks.open(Fingerprint("org/model", "target", {}), LAYOUT, 64)
    tier.close()
    disks.join()
    assert (tmp_path / "other").is_dir()
    disks.remove("org/model")
    assert not [path for path in (tmp_path / "other").iterdir() if path.is_dir()]


def test_what_waits_is_written_though_the_engine_has_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omlx.engine.disk.tier.WRITE_S", 30.0)
    fingerprint = Fingerprint("org/model", "target", {})
    with started() as engine:
        disks = open_disks(Settings(home=tmp_path, prefix_disk=1 << 20), engine)
        tier = disks.open(fingerprint, LAYOUT, 64)
        tier.worker.write(record(tuple(range(8)), "rows", 0))
        engine.abandon(EngineDead("engine.dead", detail="a test"))
        stop_engine(engine, disks)
    CacheFolder(tmp_path / "cache", fingerprint).close()  # raises while it is in use
    assert list((tmp_path / "cache" / fingerprint.name).glob("*.records"))


def test_the_end_does_not_wait_for_an_engine_that_hangs(tmp_path: Path) -> None:
    with started() as engine:
        disks = open_disks(Settings(home=tmp_path, prefix_disk=1 << 20), engine)
        answers = Event()
        hanging = engine.call(answers.wait)
        stop_engine(engine, disks, timeout_s=0.0)
        assert not hanging.done()
        answers.set()


async def test_a_model_that_cannot_be_attached_leaves_its_folders(
    engine: EngineThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*parts: object, **more: object) -> NoReturn:
        raise ModelError("model.unreadable", model=DRAFT, detail="a test")

    monkeypatch.setattr("omlx.engine.build.build_loop", fail)
    disks = DiskCache(tmp_path, DiskBudget(1 << 20), lambda: None)
    pool = make_pool(engine, DEMO, Settings(), default=DRAFT, disks=disks)
    with refused(ModelError, "model.unreadable", "a test"):
        await pool.load(DRAFT)
    assert disks._workers
    assert not disks._tiers
    disks.join()
