from __future__ import annotations

import asyncio
import json
import logging
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from omlx.engine.speculation.cost_model import CostModel
from omlx.engine.thread import EngineThread
from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.registry import ModelEntry, Registry
from omlx.models.pool.cost_store import CostKey, CostStore, LoadedCosts, machine
from omlx.models.pool.pool import Pool
from omlx.settings.schema import Settings
from tests.models.pools import make_pool
from tests.storage import homes

KEY = CostKey("org/name", "auto", 1000, machine(), "1.2.3")
TARGET, DRAFT = "omlx-demo/target", "omlx-demo/draft"
DEMO = Registry(tuple(ModelEntry(name, BUNDLED / name, "bundled") for name in (TARGET, DRAFT)))


@pytest.fixture
def files(tmp_path: Path) -> CostStore:
    return CostStore(tmp_path / "home")


def measured(seconds: float = 0.01) -> CostModel:
    costs = CostModel()
    for width in (0, 1, 4):
        costs.target.learn(width, 100, seconds * (1 + width))
    costs.learn_draft("org/small", 4, 1, 100, seconds)
    return costs


def kept(files: CostStore) -> dict[str, Any]:
    return homes.measured(files.home, "costs")


def test_saved_costs_are_loaded(files: CostStore) -> None:
    files.save(KEY, measured().to_json())
    assert files.load(KEY).to_json() == measured().to_json()
    assert files.load(KEY).target.plain(100) == pytest.approx(0.01)


def test_only_the_owner_can_read(files: CostStore) -> None:
    files.save(KEY, measured().to_json())
    (name,) = kept(files)
    assert name.startswith("org--name-")
    assert stat.S_IMODE((files.home / "omlx.sqlite").stat().st_mode) == 0o600
    assert stat.S_IMODE(files.home.stat().st_mode) == 0o700


@pytest.mark.parametrize("field", ["model", "dtype", "machine", "mlx"])
def test_costs_of_other_conditions_do_not_count(files: CostStore, field: str) -> None:
    files.save(KEY, measured().to_json())
    assert files.load(replace(KEY, **{field: "other"})).to_json() == CostModel().to_json()
    assert files.load(replace(KEY, weights_bytes=1001)).to_json() == CostModel().to_json()


def test_similar_ids_have_separate_costs(files: CostStore) -> None:
    for model in ("a/b", "a--b", "a/../b", "A/B"):
        files.save(replace(KEY, model=model), measured().to_json())
    assert len(kept(files)) == 4


def broken(content: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {**content, "costs": {"target": rows, "drafts": {}}}


@pytest.mark.parametrize(
    "rows",
    [
        [{"bucket": 0, "width": 1, "seconds": []}],
        [{"bucket": 0, "width": 1, "seconds": [-1.0]}],
        [{"bucket": 0, "width": 1, "seconds": [float("nan")]}],
        [{"bucket": 0, "width": 1, "seconds": [float("inf")]}],
        [{"bucket": 0, "width": 1, "seconds": [10**400]}],
        [{"bucket": -1, "width": 1, "seconds": [1.0]}],
        [{"bucket": 0, "width": "1", "seconds": [1.0]}],
        [{"bucket": 0, "width": 1, "seconds": 5}],
        [{"width": 1, "seconds": [1.0]}],
        [5],
        5,
    ],
)
def test_impossible_numbers_are_ignored_and_logged(
    files: CostStore, caplog: pytest.LogCaptureFixture, rows: Any
) -> None:
    files.save(KEY, measured().to_json())
    (content,) = kept(files).values()
    homes.damage(files.home, "costs", json.dumps(broken(content, rows)))
    with caplog.at_level(logging.WARNING, "omlx.models"):
        assert files.load(KEY).to_json() == CostModel().to_json()
    assert [record.getMessage() for record in caplog.records] == ["costs not read"]


@pytest.mark.parametrize(
    "raw", ["", "{", "[]", "null", "\ufffd", "[" * 100_000, '{"key": "other"}']
)
def test_what_is_malformed_is_ignored_and_replaced(files: CostStore, raw: str) -> None:
    files.save(KEY, measured().to_json())
    homes.damage(files.home, "costs", raw)
    assert files.load(KEY).to_json() == CostModel().to_json()
    files.save(KEY, measured().to_json())
    assert files.load(KEY).to_json() == measured().to_json()
    assert len(kept(files)) == 1


def test_without_measurements_nothing_is_written(files: CostStore) -> None:
    files.save(KEY, CostModel().to_json())
    assert not files.home.exists()


def test_a_folder_that_cannot_be_created_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "home").write_text("a file")
    with caplog.at_level(logging.WARNING, "omlx.models"):
        CostStore(tmp_path / "home").save(KEY, measured().to_json())
    assert [record.getMessage() for record in caplog.records] == ["costs not saved"]


def test_reopening_a_model_keeps_its_costs_and_closing_saves_them(files: CostStore) -> None:
    loaded = LoadedCosts(files)
    costs = loaded.open(KEY)
    costs.target.learn(1, 100, 0.01)
    assert loaded.open(KEY) is costs
    loaded.open(replace(KEY, model="org/other"))
    assert len(kept(files)) == 1
    assert loaded.open(KEY).to_json() == costs.to_json()
    loaded.close()
    assert loaded.record() is None


async def test_costs_survive_a_change_of_models_and_a_restart(
    engine: EngineThread, files: CostStore
) -> None:
    async def learn(pool: Pool, model: str) -> float | None:
        """What a plain pass cost when the model was loaded; then the engine measures one."""
        lease = await pool.lease(model)

        def measure() -> float | None:
            costs = engine._loops[lease.served.id].cost_model
            known = costs.target.plain(100)
            costs.target.learn(1, 100, 0.01)
            return known

        known = await asyncio.wrap_future(engine.call(measure))
        lease.release()
        return known

    first = make_pool(engine, DEMO, Settings(speculation="ngram"), costs=files)
    seen = [await learn(first, name) for name in (TARGET, DRAFT, TARGET)]
    await first.save_costs()
    await asyncio.wrap_future(engine.call(lambda: engine.detach(TARGET)))
    second = make_pool(engine, DEMO, Settings(speculation="ngram"), costs=files)
    seen.append(await learn(second, DRAFT))
    assert seen == [None, None, pytest.approx(0.01), pytest.approx(0.01)]
    assert len(kept(files)) == 2
