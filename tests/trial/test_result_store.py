"""Results of trials on disk, and the conditions under which they hold."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from omlx.models.catalog.registry import ModelEntry
from omlx.trial.conditions import Conditions, stale
from omlx.trial.result_store import History, ResultStore, StoredResult
from tests.models.trees import model

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
    assert (reason.code, reason.params) == (
        "trial.stale.version",
        {"name": "mlx", "before": "2", "after": "2.1"},
    )
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
    assert store.load("org/big") == History()
    store.save("org/big", STORED, {"org/small": STORED})
    newer = replace(STORED, at=2000.0)
    store.save("org/big", newer, {"org/tiny": newer})
    store.save("org/other", STORED, {})
    history = store.load("org/big")
    assert history.report == newer
    assert history.drafts == {"org/small": STORED, "org/tiny": newer}
    for file in (tmp_path / "trials").iterdir():
        assert file.stat().st_mode & 0o777 == 0o600


OURS = '{"format": "omlx-config/1", "model": "org/big"'


@pytest.mark.parametrize("broken", ["", "{", "[]", '{"report": 1}', OURS, f"{OURS}}}"])
def test_an_unreadable_file_counts_as_missing(tmp_path: Path, broken: str) -> None:
    store = ResultStore(tmp_path)
    store.save("org/big", STORED, {})
    (file,) = (tmp_path / "trials").iterdir()
    file.write_text(broken)
    assert store.load("org/big") == History()
    file.write_text(broken)
    store.save("org/big", STORED, {})
    assert store.load("org/big").report == STORED


def test_a_file_of_another_model_counts_as_missing(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    store.save("org/big", STORED, {})
    (file,) = (tmp_path / "trials").iterdir()
    file.write_text(json.dumps({**json.loads(file.read_text()), "model": "org/other"}))
    assert store.load("org/big") == History()
