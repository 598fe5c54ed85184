from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx.errors import StageError
from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.facts import fingerprint
from omlx.models.stages import check_counts, check_rooms, split_layers
from tests.server.running import TARGET


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
    with pytest.raises(StageError) as refusal:
        split_layers([10, 10], 0, [1, 1, 1])
    assert refusal.value.params == {"layers": 2, "ranks": 3}


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
    with pytest.raises(StageError) as refusal:
        check_rooms([1 << 30, 3 << 30], [4 << 30, 2 << 30], ["here", "there"])
    assert refusal.value.code == "stage.no_room"
    assert refusal.value.params == {"rank": 1, "host": "there", "need_gb": 3.0, "room_gb": 2.0}
