"""Stages: how layers are split, and what a follower compares, loads, counts and refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx.engine.stage.link import Frame, Kind
from omlx.engine.stage.runners import Group
from omlx.errors import ModelError, StageError
from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.facts import fingerprint
from omlx.models.catalog.registry import ModelEntry
from omlx.models.stages import FollowerStage, check_counts, check_rooms, split_layers
from tests.refusals import refused
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


@pytest.mark.parametrize(
    ("kind", "values", "code"),
    [
        (Kind.CHECK, {"model": "org/other", "fingerprint": {}}, "stage.other_model"),
        (Kind.LANE, {}, "stage.protocol"),  # without a model
        (Kind.REPLY, {}, "stage.protocol"),  # which only a leader receives
    ],
)
def test_an_order_that_cannot_be_carried_out_is_refused(
    kind: Kind, values: dict[str, Any], code: str
) -> None:
    with refused(StageError, code):
        tell(stage(), kind, **values)


def test_weights_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    copy = shutil.copytree(LEADERS, tmp_path / "copy")
    follower = stage(Path(copy))
    tell(follower, Kind.CHECK, model=TARGET, fingerprint=fingerprint(LEADERS))
    (tmp_path / "copy/model.safetensors").write_bytes(b"no weights")
    with pytest.raises(ModelError):
        tell(follower, Kind.LOAD, **LOAD)


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


@given(
    layers=st.lists(st.integers(1, 1000), min_size=4, max_size=80),
    others=st.integers(0, 500),
    rooms=st.lists(st.integers(1000, 100_000), min_size=2, max_size=4),
)
def test_every_layer_has_one_rank_and_every_rank_a_layer(
    layers: list[int], others: int, rooms: list[int]
) -> None:
    counts = split_layers(layers, others, rooms)
    assert sum(counts) == len(layers)
    assert min(counts) >= 1


def test_layers_follow_memory() -> None:
    assert split_layers([10] * 40, 0, [64, 64]) == [20, 20]
    assert split_layers([10] * 40, 0, [96, 32]) == [30, 10]
    assert split_layers([10] * 12, 0, [10, 20, 30]) == [2, 4, 6]


def test_fewer_layers_than_ranks_are_refused() -> None:
    with refused(StageError, "stage.too_many", layers=2, ranks=3):
        split_layers([10, 10], 0, [1, 1, 1])


@pytest.mark.parametrize("counts", [(2,), (3, 1, 1), (4, 0), (2, 3)])
def test_counts_that_do_not_fit_are_refused(counts: tuple[int, ...]) -> None:
    with pytest.raises(StageError):
        check_counts(counts, 4, 2)


def test_one_changed_byte_in_the_middle_changes_the_fingerprint(tmp_path) -> None:
    file = tmp_path / "model.safetensors"
    content = bytearray((BUNDLED / TARGET / "model.safetensors").read_bytes())
    (tmp_path / "config.json").write_text("{}")
    file.write_bytes(content)
    before = fingerprint(tmp_path)
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    after = fingerprint(tmp_path)
    assert {name for name in before if before[name] != after[name]} == {file.name}


def test_a_rank_without_room_is_named_with_both_sizes() -> None:
    check_rooms([2 << 30, 3 << 30], [2 << 30, 3 << 30], ["here", "there"])
    with refused(StageError, "stage.no_room", rank=1, host="there", need_gb=3.0, room_gb=2.0):
        check_rooms([1 << 30, 3 << 30], [4 << 30, 2 << 30], ["here", "there"])
