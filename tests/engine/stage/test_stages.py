"""A staged model has the tokens, logprobs and caches of the same model in one process."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from mlx import nn

from omlx.engine.stage.ends import SHARDED, STAGED, check_split
from omlx.errors import StageError
from tests import zoo
from tests.engine.stage.ranks import PATIENCE_S, Hung, run_ranks
from tests.lanes import few

SCENARIO = "tests.engine.stage.scenario"
ROUNDING = 1e-3
"""By how much logprobs may differ where parts of a layer are summed in another order. The largest
gap of the table is 2e-4.
"""

NEAR_TIES = {("qwen2", 3): ["crowd2"]}
"""By family and ranks: requests whose tokens may part where two candidates tie within rounding;
which one wins depends on the BLAS library. Of crowd2's fourth token the scores are 20.463497 and
20.463507.
"""

QUICK = {
    "qwen2": ["2,1"],
    "qwen3_next": ["1,2"],
    "ministral3": ["1,1,1"],
    "deepseek_v32": ["2,1"],
    "llama": ["1,2", "tensor"],
    "llama_quantized": ["2,1"],
    "llama_mixed": ["1,1,1"],
}
"""Every way to cut a model, every kind of cache, and hidden states wider than the embedding."""


def ways(family: str) -> list[str]:
    """Every split over two ranks that mlx-lm allows, and one over three."""
    model = zoo.build(family)
    layers = len(model.layers)
    splits = [[layers - count, count] for count in range(1, layers)]
    if layers > 2:
        splits.append([1, layers - 2, 1])
    return [",".join(map(str, split)) for split in splits if allowed(model, split)]


def allowed(model: nn.Module, split: list[int]) -> bool:
    with suppress(StageError):
        check_split(model, split)
        return True
    return False


def prove(
    family: str, ways: list[str], folder: Path, ranks: int = 2, patience_s: float = PATIENCE_S
) -> None:
    ranks = max(ranks, *(way.count(",") + 1 for way in ways))
    for way, result in run_ranks(SCENARIO, ranks, [family, *ways], folder, patience_s).items():
        if way == "tensor":
            check(result, ROUNDING, NEAR_TIES.get((family, ranks), []))
        else:
            check(result, 0.0, [])


def check(result: dict[str, Any], tolerance: float, ties: list[str]) -> None:
    assert not result["failed"]
    assert set(result["different"]) <= set(ties), result
    assert result["same_plans"] or result["different"]  # plans follow tokens
    assert result["logprob_gap"] is not None, result
    assert result["logprob_gap"] <= tolerance, result
    assert result["cancelled"] == 5
    assert sum(result["drafted"].values()) > 20
    assert {"open", "restore", "save", "rewind", "drop", "evict"} <= result["ops"].keys()
    assert result["plans"] > 80


@pytest.mark.parametrize("family", few(QUICK, "llama"))
def test_stages_change_nothing(family: str, tmp_path: Path) -> None:
    prove(family, QUICK[family], tmp_path)


@pytest.mark.slow
def test_ranks_that_hang_end_and_show_where(tmp_path: Path) -> None:
    with pytest.raises(Hung, match="most recent call first"):
        prove("llama", ["2,1"], tmp_path, patience_s=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted([*STAGED, "llama_quantized"]))
def test_every_architecture_of_the_table_is_exact_in_all_splits(
    family: str, tmp_path: Path
) -> None:
    prove(family, ways(family), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("family", sorted(SHARDED))
def test_every_sharded_architecture_is_exact(family: str, ranks: int, tmp_path: Path) -> None:
    prove(family, ["tensor"], tmp_path, ranks)
