"""Models that come and go while a server runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from omlx.engine.thread import EngineThread
from omlx.errors import ModelGone, NotFound, OmlxError
from omlx.models.catalog import discovery
from omlx.models.catalog.discovery import BUNDLED, Discovery, Folder, HubCache
from omlx.models.catalog.registry import ModelEntry
from omlx.models.catalog.tokenizer import read_tokenizer
from omlx.models.pool.pool import Pool
from omlx.models.watchers import RegistryWatcher
from tests.models import trees
from tests.models.pools import make_pool
from tests.refusals import refused

DRAFT = BUNDLED / "omlx-demo/draft"


class Watched:
    """A pool over a folder of models, and its watcher."""

    def __init__(self, engine: EngineThread, root: Path) -> None:
        find = Discovery([Folder("models", root)])
        self.pool: Pool = make_pool(engine, find.scan())
        self._watcher = RegistryWatcher(self.pool, find.scan)

    async def ids(self) -> list[str]:
        """Check once; return the listed models."""
        await self._watcher.check()
        return [entry.id for entry in self.pool.models]

    async def answer(self, model: str) -> str:
        """Return the id of the model that would answer, or the code of the error."""
        try:
            lease = await self.pool.lease(model)
        except OmlxError as error:
            return f"{error.status} {error.code}"
        lease.release()
        return lease.served.id


async def test_a_copied_folder_is_served_and_a_deleted_one_is_not_found(
    engine: EngineThread, tmp_path: Path
) -> None:
    watched = Watched(engine, tmp_path)
    assert await watched.ids() == []
    shutil.copytree(DRAFT, tmp_path / "one")
    assert await watched.ids() == ["one"]
    assert await watched.answer("one") == "one"
    shutil.rmtree(tmp_path / "one")
    assert await watched.ids() == ["one"], "a loaded model stays"
    await watched.pool.reconfigure()
    assert await watched.answer("one") == "one"
    await watched.pool.unload("one")
    assert await watched.answer("one") == "404 model.folder_missing", "before the next check"
    assert await watched.ids() == []
    assert await watched.answer("one") == "404 model.not_found"


async def test_a_model_that_takes_the_place_of_another_is_read_anew(
    engine: EngineThread, tmp_path: Path
) -> None:
    shutil.copytree(DRAFT, tmp_path / "one")
    watched = Watched(engine, tmp_path)
    before = await watched.pool.tokenizer("one")
    assert await watched.pool.tokenizer("one") is before
    file = tmp_path / "one/tokenizer.json"
    content = json.loads(file.read_text())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    content["added_tokens"].append({"id": 2048, "content": "<new>", "special": True, **flags})
    file.write_text(json.dumps(content))
    assert "<new>" in (await watched.pool.tokenizer("one")).get_vocab()


def test_a_copy_in_progress_is_not_broken_for_ever(tmp_path: Path) -> None:
    find = Discovery([Folder("models", tmp_path)])
    folder = trees.model(tmp_path / "one", files=[])
    assert trees.ids(find.scan()) == {"one": "model.no_weights"}
    (folder / "model.safetensors").write_bytes(b"0123456789")
    (folder / "config.json").write_text('{"model_type": "ll')
    assert trees.ids(find.scan()) == {"one": "model.unreadable"}
    with (folder / "config.json").open("a") as config:  # the folder's own time does not change
        config.write('ama"}')
    assert trees.ids(find.scan()) == {"one": "usable"}


def test_a_download_in_progress_is_not_broken_for_ever(tmp_path: Path) -> None:
    find = Discovery([HubCache("hf-cache", tmp_path)])
    snapshot = trees.hub_model(tmp_path, "org/one", files=[], unfinished=1)
    assert trees.ids(find.scan()) == {"org/one": "model.half_download"}
    blobs = snapshot.parent.parent / "blobs"
    (blobs / f"{0:064x}.incomplete").rename(blobs / "weights")
    (snapshot / "model.safetensors").symlink_to("../../blobs/weights")
    assert trees.ids(find.scan()) == {"org/one": "usable"}


def test_a_scan_inspects_only_what_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inspected = []
    inspect = discovery.inspect_checkpoint

    def counted(model_id: str, directory: Path, source: str) -> ModelEntry:
        inspected.append(model_id)
        return inspect(model_id, directory, source)

    monkeypatch.setattr(discovery, "inspect_checkpoint", counted)
    for number in range(300):
        trees.model(tmp_path / f"model-{number:03}")
    find = Discovery([Folder("models", tmp_path)])
    first = find.scan()
    assert len(inspected) == 300
    assert find.scan() is first
    trees.model(tmp_path / "model-007", {"model_type": "qwen3"})
    second = find.scan()
    assert inspected[300:] == ["model-007"]
    assert second.get("model-007").model_type == "qwen3"


def test_the_cache_may_hold_a_snapshot_that_links_to_itself(tmp_path: Path) -> None:
    repository = tmp_path / "models--org--loop"
    (repository / "snapshots").mkdir(parents=True)
    (repository / "snapshots/main").symlink_to("main")
    entries = Discovery([HubCache("hf-cache", tmp_path)]).scan().entries
    assert [entry.usable for entry in entries] == [False]


def test_the_tokenizer_of_a_deleted_folder_is_gone(tmp_path: Path) -> None:
    with refused(ModelGone, "model.folder_missing") as gone:
        read_tokenizer(ModelEntry("one", tmp_path / "one", "models"))
    assert gone.value.status == 404


async def test_a_name_that_a_terminal_would_obey_is_refused(
    engine: EngineThread, tmp_path: Path
) -> None:
    shutil.copytree(DRAFT, tmp_path / "two\nlines")
    watched = Watched(engine, tmp_path)
    assert await watched.answer("two\nlines") == "400 model.name"
    with pytest.raises(NotFound):
        watched.pool.resolve("other")
