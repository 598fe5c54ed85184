"""What a follower does for its leader: compares, loads, counts lanes, and refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from omlx.engine.stage.link import Frame, Kind
from omlx.engine.stage.runners import Group
from omlx.errors import ModelError, StageError
from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.facts import fingerprint
from omlx.models.catalog.registry import ModelEntry
from omlx.models.stages import FollowerStage
from tests.server.running import TARGET

LEADERS = BUNDLED / TARGET
LOAD = {"dtype": "auto", "trusted": False, "counts": [6, 2], "vocab_size": 1 << 20, "kv_bits": None}


def stage(folder: Path = LEADERS) -> FollowerStage:
    follower = FollowerStage(lambda: ModelEntry(TARGET, folder, "test"))
    follower.group = Group(1, 2)
    return follower


def tell(follower: FollowerStage, kind: Kind, lane: int = 0, **values: Any) -> dict[str, Any]:
    return follower.carry_out(Frame(kind, lane, json.dumps(values).encode())) or {}


def loaded(follower: FollowerStage) -> int:
    """The bytes of the layers that it has read."""
    tell(follower, Kind.CHECK, model=TARGET, fingerprint=fingerprint(LEADERS))
    nbytes: int = tell(follower, Kind.LOAD, **LOAD)["weights_bytes"]
    return nbytes


def test_it_reads_its_own_layers_only() -> None:
    weights = LEADERS / "model.safetensors"
    assert 0 < loaded(stage()) < weights.stat().st_size


def test_another_model_is_refused() -> None:
    with pytest.raises(StageError) as refusal:
        tell(stage(), Kind.CHECK, model="org/other", fingerprint={})
    assert refusal.value.code == "stage.other_model"


def test_weights_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    copy = shutil.copytree(LEADERS, tmp_path / "copy")
    follower = stage(Path(copy))
    tell(follower, Kind.CHECK, model=TARGET, fingerprint=fingerprint(LEADERS))
    (tmp_path / "copy/model.safetensors").write_bytes(b"no weights")
    with pytest.raises(ModelError):
        tell(follower, Kind.LOAD, **LOAD)


def test_without_a_model_there_are_no_lanes() -> None:
    with pytest.raises(StageError) as refusal:
        tell(stage(), Kind.LANE)
    assert refusal.value.code == "stage.protocol"


def test_what_only_a_leader_receives_is_refused() -> None:
    with pytest.raises(StageError) as refusal:
        tell(stage(), Kind.REPLY)
    assert refusal.value.code == "stage.protocol"


def test_a_model_is_left_with_its_last_lane_and_not_with_one_of_the_model_before() -> None:
    follower = stage()
    loaded(follower)
    tell(follower, Kind.LANE, 1)
    loaded(follower)  # before the leader has closed the lane
    tell(follower, Kind.CLOSE, 1)
    tell(follower, Kind.LANE, 2)
    tell(follower, Kind.LANE, 3)
    tell(follower, Kind.CLOSE, 2)
    tell(follower, Kind.LANE, 4)
    for lane in (3, 4):
        tell(follower, Kind.CLOSE, lane)
    with pytest.raises(StageError):
        tell(follower, Kind.LANE, 5)
