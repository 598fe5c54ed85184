"""What a request may call a model, and models whose code somebody trusts."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from omlx.engine.thread import EngineThread
from omlx.errors import ConfigError, ModelError, NotFound
from omlx.models.catalog.catalog import check_alias, find_model
from omlx.models.catalog.discovery import BUNDLED, Registry, scan_places
from omlx.models.catalog.places import Folder
from omlx.models.pool.pool import Pool
from omlx.settings.configuration import Configuration, LiveConfiguration
from omlx.settings.layer import Layer, Source
from omlx.settings.store import Store
from tests.models.trees import model

CODE = "from mlx_lm.models.llama import Model, ModelArgs\n"


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    for name in ("one/big", "two/big", "one/small"):
        model(tmp_path / "models" / name)
    return scan_places([Folder("here", tmp_path / "models")])


def configuration(tmp_path: Path, **given: str) -> Configuration:
    store = Store(tmp_path / "home")
    for name, alias in given.items():
        store.patch({"alias": alias}, f"one/{name}")
    return Configuration((), store.read())


def test_ids_go_before_aliases_and_aliases_before_short_names(
    tmp_path: Path, registry: Registry
) -> None:
    configured = configuration(tmp_path, big="small", small="two/big")
    found = {
        name: find_model(name, registry, configured).id
        for name in ("small", "two/big", "one/small")
    }
    assert found == {"small": "one/big", "two/big": "two/big", "one/small": "one/small"}


def test_a_name_of_two_models_names_neither(tmp_path: Path, registry: Registry) -> None:
    configured = configuration(tmp_path, big="mine", small="mine")
    for name in ("mine", "big"):
        with pytest.raises(NotFound) as caught:
            find_model(name, registry, configured)
        assert caught.value.code == "model.ambiguous"


@pytest.mark.parametrize("alias", ["two/big", "one/big", "small", "taken"])
def test_an_alias_must_be_new(tmp_path: Path, registry: Registry, alias: str) -> None:
    configured = configuration(tmp_path, small="taken")
    with pytest.raises(ConfigError):
        check_alias(alias, "one/big", registry, configured)
    check_alias("taken", "one/small", registry, configured)
    check_alias("new", "one/big", registry, configured)


def test_a_models_own_code_runs_only_where_it_is_trusted(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(BUNDLED / "omlx-demo/draft", tmp_path / "models/org/own"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({**config, "model_type": "mine", "model_file": "mine.py"})
    )
    (folder / "mine.py").write_text(f"{CODE}open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    registry = scan_places([Folder("here", tmp_path / "models")])

    async def lease(*run: Layer) -> None:
        store = Store(tmp_path / "home")
        configured = LiveConfiguration(run, store)
        pool = Pool(
            engine, registry, configured.current.resolve().settings, configuration=configured
        )
        (await pool.lease("org/own")).release()
        await pool.unload("org/own")

    engine = EngineThread()
    engine.start()
    try:
        with pytest.raises(ModelError) as caught:
            asyncio.run(lease())
        assert caught.value.code == "model.remote_code"
        assert not (tmp_path / "ran").exists()
        asyncio.run(lease(Layer(Source.CLI, {"trust_remote_code": True})))
        assert (tmp_path / "ran").exists()
        Store(tmp_path / "home").patch({"trust_remote_code": True}, "org/own")
        asyncio.run(lease())
    finally:
        engine.stop()
