"""What is kept of a trial, when it no longer counts; and what a trial is thought to take."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from omlx.models.catalog.entry import ModelEntry
from omlx.trial.conditions import Conditions, stale
from omlx.trial.estimate import Estimate, Weights, estimate
from omlx.trial.result_store import History, ResultStore, StoredResult
from tests.models.trees import model

NOW = Conditions(
    "a Mac", {"omlx": "1", "mlx": "2", "mlx-lm": "3"}, {"org/big": "aa", "org/small": "bb"}
)
KEPT = StoredResult({"verdict": None}, 1000.0, NOW)


def test_figures_count_while_nothing_they_depend_on_has_changed() -> None:
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


def test_other_weights_in_a_folder_are_other_weights(tmp_path: Path) -> None:
    entry = ModelEntry("org/big", model(tmp_path / "big"), "test")
    before = Conditions.now([entry])
    assert before == Conditions.now([entry])
    (tmp_path / "big/model.safetensors").write_bytes(b"others, and longer")
    assert [each.code for each in stale(before, Conditions.now([entry]))] == ["trial.stale.weights"]


def test_the_last_result_of_each_draft_stays(tmp_path: Path) -> None:
    results = ResultStore(tmp_path)
    assert results.load("org/big") == History()
    results.save("org/big", KEPT, {"org/small": KEPT})
    newer = replace(KEPT, at=2000.0)
    results.save("org/big", newer, {"org/tiny": newer})
    results.save("org/other", KEPT, {})
    found = results.load("org/big")
    assert (found.report, found.drafts) == (newer, {"org/small": KEPT, "org/tiny": newer})
    for file in (tmp_path / "trials").iterdir():
        assert file.stat().st_mode & 0o777 == 0o600


OURS = '{"format": "omlx-config/1", "model": "org/big"'


@pytest.mark.parametrize("broken", ["", "{", "[]", '{"report": 1}', OURS, f"{OURS}}}"])
def test_a_file_that_says_nothing_is_as_if_it_were_not_there(tmp_path: Path, broken: str) -> None:
    results = ResultStore(tmp_path)
    results.save("org/big", KEPT, {})
    (file,) = (tmp_path / "trials").iterdir()
    file.write_text(broken)
    assert results.load("org/big") == History()
    file.write_text(broken)
    results.save("org/big", KEPT, {})
    assert results.load("org/big").report == KEPT


def test_a_file_of_other_figures_is_not_taken_for_ours(tmp_path: Path) -> None:
    results = ResultStore(tmp_path)
    results.save("org/big", KEPT, {})
    (file,) = (tmp_path / "trials").iterdir()
    file.write_text(json.dumps({**json.loads(file.read_text()), "model": "org/other"}))
    assert results.load("org/big") == History()


def asked(
    drafts: int = 1, *, rate: float | None = 20.0, loaded: bool = True, limit: int = 1 << 40
) -> Estimate:
    names = [f"org/{number}" for number in range(drafts)]
    return estimate(
        drafts=names,
        kinds=4,
        tokens=128,
        target=Weights(8_000_000_000, loaded),
        weights=[Weights(1_000_000_000 * (number + 1), False) for number in range(drafts)],
        rate=rate,
        device="gpu",
        limit_bytes=limit,
    )


def test_an_estimate_grows_with_what_is_asked() -> None:
    one, two = asked(1), asked(2)
    assert 0 < one.least_s < one.most_s < two.most_s
    assert one.least_s == pytest.approx(3 * 4 * 4 * 128 / 20, rel=0.5)
    assert asked(1, loaded=False).least_s > one.least_s
    assert (one.guessed, asked(rate=None).guessed) == (False, True)


def test_memory_is_that_of_the_model_and_of_two_drafts_at_most() -> None:
    gb = 1_000_000_000
    assert [asked(n).memory_bytes // gb for n in range(4)] == [0, 1, 3, 5]
    assert asked(3, loaded=False).memory_bytes == 13 * gb
    assert asked(3, limit=13 * gb).fits
    assert not asked(3, limit=12 * gb).fits
