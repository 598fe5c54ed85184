"""Results of trials and benchmarks on disk, and the conditions under which they hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from omlx.measure.results import KEPT, Conditions, History, ResultStore, StoredResult, keep, stale
from omlx.models.catalog.registry import ModelEntry
from tests.models.trees import model
from tests.storage import homes

NOW = Conditions(
    "a Mac", {"omlx": "1", "mlx": "2", "mlx-lm": "3"}, {"org/big": "aa", "org/small": "bb"}
)
STORED = StoredResult({"verdict": None}, 1000.0, NOW)


def test_figures_hold_while_their_conditions_do() -> None:
    assert stale(NOW, NOW) == ()
    assert [each.code for each in stale(NOW, replace(NOW, machine="another"))] == [
        "trial.stale.machine"
    ]
    newer = replace(NOW, versions={**NOW.versions, "mlx": "2.1"})
    (reason,) = stale(NOW, newer)
    assert reason.code == "trial.stale.version"
    assert reason.params == {"name": "mlx", "before": "2", "after": "2.1"}
    (reason,) = stale(NOW, replace(NOW, weights={"org/small": "cc", "org/other": "dd"}))
    assert (reason.code, reason.params) == ("trial.stale.weights", {"model": "org/small"})


def test_changed_weight_files_make_a_result_stale(tmp_path: Path) -> None:
    entry = ModelEntry("org/big", model(tmp_path / "big"), "test")
    before = Conditions.now([entry])
    assert before == Conditions.now([entry])
    (tmp_path / "big/model.safetensors").write_bytes(b"others, and longer")
    assert [each.code for each in stale(before, Conditions.now([entry]))] == ["trial.stale.weights"]


def test_the_last_result_of_each_draft_is_kept(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    assert store.trials("org/big") == History()
    store.save_trial("org/big", STORED, {"org/small": STORED})
    newer = replace(STORED, at=2000.0)
    store.save_trial("org/big", newer, {"org/tiny": newer})
    store.save_trial("org/other", STORED, {})
    history = store.trials("org/big")
    assert history.report == newer
    assert history.drafts == {"org/small": STORED, "org/tiny": newer}


@pytest.mark.parametrize("broken", ["", "{", "[]", '{"report": 1}', "null"])
def test_what_cannot_be_read_counts_as_missing(tmp_path: Path, broken: str) -> None:
    store = ResultStore(tmp_path)
    store.save_trial("org/big", STORED, {})
    homes.damage(tmp_path, "trials", broken)
    assert store.trials("org/big") == History()
    store.save_trial("org/big", STORED, {})
    assert store.trials("org/big").report == STORED


def run(at: float, version: str = "1") -> StoredResult:
    return StoredResult({"rows": []}, at, Conditions("machine", {"omlx": version}))


def test_runs_are_kept_by_model_the_newest_first(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    assert store.runs("org/a") == []
    for at in range(3):
        store.add_run("org/a", run(at))
    store.add_run("org/b", run(9))
    assert [kept.at for kept in store.runs("org/a")] == [2, 1, 0]
    assert [kept.at for kept in ResultStore(tmp_path).runs("org/b")] == [9]


def test_a_version_is_not_displaced_by_newer_runs_of_another(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    store.add_run("m", run(0, "1"))
    for at in range(1, 2 * KEPT):
        store.add_run("m", run(at, "2"))
    kept = store.runs("m")
    assert len(kept) == KEPT
    assert (kept[0].at, kept[-1].at) == (2 * KEPT - 1, 0)
    versions = [run(at, str(at)) for at in range(2 * KEPT)]
    assert keep(versions) == versions[:KEPT]


def test_damaged_runs_count_as_none(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    store.add_run("m", run(0))
    homes.damage(tmp_path, "benchmarks", "{")
    assert store.runs("m") == []
    store.add_run("m", run(1))
    assert [kept.at for kept in store.runs("m")] == [1]
