"""Models that cannot be split are refused before anything is loaded; a page lists the others."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from omlx.engine.stage.ends import (
    EVEN_ONLY,
    PIPELINED,
    SHARDED,
    STAGED,
    check_architecture,
    check_heads,
    check_split,
    place,
    shard,
)
from omlx.errors import ModelError, StageError
from tests import zoo
from tests.lanes import few
from tests.refusals import refused


@pytest.mark.parametrize("family", ["llama", "qwen3_5", "deepseek_v32", "step3p5"])
def test_heads_that_do_not_divide_are_refused_with_both_numbers(family: str) -> None:
    model = zoo.build(family)
    check_heads(model, 2)
    with refused(StageError, "stage.heads", ranks=3) as refusal:
        check_heads(model, 3)
    assert refusal.value.params["heads"] in (2, 4)


def test_weights_that_do_not_divide_are_refused() -> None:
    with refused(StageError, "stage.parts", ranks=5):
        shard(zoo.build("llama"), SimpleNamespace(rank=lambda: 0, size=lambda: 5))


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(SHARDED))
def test_the_heads_of_every_sharded_architecture_are_found(family: str) -> None:
    with pytest.raises(StageError):
        check_heads(zoo.build(family), 3)


def test_a_rank_without_a_layer_of_each_kind_is_refused() -> None:
    model = zoo.build("bailing_hybrid")
    layers = len(model.layers)
    check_split(model, [1, 3])
    assert len(model.layers) == layers
    with refused(StageError, "stage.split", "MLA"):
        check_split(model, [3, 1])


@pytest.mark.parametrize(
    ("family", "split", "wrong"),
    [
        ("afm7", [2, 1], [1, 2]),  # layers that read the cache of another stay with it
        ("kimi_k3", [1, 2], [2, 1]),  # split evenly only
    ],
)
def test_other_splits_are_refused(family: str, split: list[int], wrong: list[int]) -> None:
    model = zoo.build(family)
    check_split(model, split)
    with refused(StageError, "stage.split"):
        check_split(model, wrong)


def test_other_models_are_cut_anywhere() -> None:
    for family in ("llama", "qwen3_next", "kimi_k25"):
        assert family in STAGED
        check_split(zoo.build(family), [1, 2])


def test_layers_that_pass_on_more_than_hidden_states_are_not_cut() -> None:
    model = zoo.build("kimi_k3")
    check_architecture(model, tensor=False)
    model.model.use_attn_res = True
    check_architecture(model, tensor=True)
    with refused(ModelError, "stage.unsupported"):
        check_architecture(model, tensor=False)


@pytest.mark.parametrize("family", few(sorted(STAGED), "llama", "qwen3_next"))
def test_every_staged_architecture_can_be_cut(family: str) -> None:
    model = zoo.build(family)
    counts = [1, len(model.layers) - 1]
    with suppress(StageError):  # of each kind one, or evenly only: another cut is allowed
        check_split(model, counts)
        place(model, 0, counts)
        assert len(model.layers) in (1, sum(counts))


PAGE = Path(__file__).resolve().parents[3] / "docs/stages.md"


def rows() -> str:
    """The lines of the table."""
    lines = []
    for architecture in sorted({*STAGED, *SHARDED}):
        listed = "list" if architecture in STAGED else ""
        pipeline = "mlx-lm" if architecture in PIPELINED else listed
        even = ", even" if architecture in EVEN_ONLY else ""
        tensor = "yes" if architecture in SHARDED else ""
        lines.append(f"| `{architecture}` | {pipeline}{even} | {tensor} |\n")
    return "".join(lines)


def test_the_table_of_the_page_is_that_of_the_code() -> None:
    table = "| architecture | pipeline | tensor |\n|---|---|---|\n" + rows()
    assert table + "\n" in PAGE.read_text(encoding="utf-8"), table
