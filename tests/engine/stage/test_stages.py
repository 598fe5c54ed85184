"""A staged model has the tokens, logprobs and caches of the same model in one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from omlx.engine.stage.ends import EVEN_ONLY, SHARDED, STAGED
from tests import zoo
from tests.engine.stage.ranks import run_ranks

SCENARIO = "tests.engine.stage.scenario"

QUICK = [
    ("qwen2", "2,1"),
    ("qwen3_next", "1,2"),
    ("ministral3", "1,1,1"),
    ("deepseek_v32", "2,1"),
    ("llama", "1,2"),
    ("llama_quantized", "2,1"),
    ("llama", "tensor"),
]
"""Every way to cut a model and every kind of cache."""


def splits(family: str) -> list[str]:
    """Every uneven split over two ranks; the even one where there is no other."""
    layers = len(zoo.build(family).layers)
    if family in EVEN_ONLY:
        return [f"{layers // 2},{layers - layers // 2}"]
    return [f"{layers - count},{count}" for count in range(1, layers)]


def prove(family: str, split: str, folder: Path) -> None:
    ranks = 2 if split == "tensor" else split.count(",") + 1
    result = run_ranks(SCENARIO, ranks, [family, split], folder)
    assert not result["failed"]
    assert all(result["same"].values()), result
    assert result["same_logprobs"] or split == "tensor"  # parts of layers are summed in turn
    assert result["drafted"] > 20
    assert result["restored"] > 0
    assert result["plans"] > 60


@pytest.mark.parametrize(("family", "split"), QUICK)
def test_stages_change_nothing(family: str, split: str, tmp_path: Path) -> None:
    prove(family, split, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(STAGED))
def test_every_architecture_of_the_table_is_exact_in_all_splits(
    family: str, tmp_path: Path
) -> None:
    for split in splits(family):
        if family == "bailing_hybrid" and split != "1,3":
            continue  # mlx-lm asks for a layer of each kind on every rank
        prove(family, split, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(SHARDED))
def test_every_sharded_architecture_is_exact(family: str, tmp_path: Path) -> None:
    prove(family, "tensor", tmp_path)
