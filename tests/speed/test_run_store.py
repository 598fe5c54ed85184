"""Stored benchmarks: newest first, bounded, each version kept."""

from __future__ import annotations

from pathlib import Path

from omlx.speed.run_store import KEPT, RunStore, keep
from omlx.trial.conditions import Conditions
from omlx.trial.result_store import StoredResult


def run(at: float, version: str = "1") -> StoredResult:
    return StoredResult({"rows": []}, at, Conditions("machine", {"omlx": version}))


def test_runs_are_kept_by_model_the_newest_first(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    assert store.load("org/a") == []
    for at in range(3):
        store.add("org/a", run(at))
    store.add("org/b", run(9))
    assert [kept.at for kept in store.load("org/a")] == [2, 1, 0]
    assert [kept.at for kept in RunStore(tmp_path).load("org/b")] == [9]


def test_a_version_is_not_displaced_by_newer_runs_of_another(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    store.add("m", run(0, "1"))
    for at in range(1, 2 * KEPT):
        store.add("m", run(at, "2"))
    kept = store.load("m")
    assert len(kept) == KEPT
    assert (kept[0].at, kept[-1].at) == (2 * KEPT - 1, 0)
    versions = [run(at, str(at)) for at in range(2 * KEPT)]
    assert keep(versions) == versions[:KEPT]


def test_a_damaged_file_counts_as_none_and_another_model_is_not_shown(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    store.add("m", run(0))
    (path,) = (tmp_path / "benchmarks").glob("*.json")
    path.write_text("{")
    assert store.load("m") == []
    store.add("m", run(1))
    assert [kept.at for kept in store.load("m")] == [1]
    path.write_text(path.read_text().replace('"model": "m"', '"model": "n"'))
    assert store.load("m") == []
