"""Speculation in bfloat16 and 4 bit: tokens are those of plain decoding but for near-ties, and all
of them if strict, as `python -m lab.bench exact` compares them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab.bench.__main__ import main
from lab.bench.drive import fixed_costs, flat
from omlx.engine.step.plan import Read
from omlx.models.catalog.discovery import BUNDLED

DEMO = BUNDLED / "omlx-demo"
MODES = "draft 4,ngram,auto"


def compared(
    file: Path, model: str, *arguments: str, modes: str = MODES, status: int = 0
) -> list[dict[str, Any]]:
    """Return the command's record of each mode."""
    models = ("--model", str(DEMO / model), "--draft", str(DEMO / "draft"), "--json", str(file))
    assert main(["exact", *models, "--modes", modes, *arguments]) == status
    comparisons: list[dict[str, Any]] = json.loads(file.read_text())["modes"]
    return comparisons


BFLOAT16 = ("--dtype", "bfloat16")
FOUR_BITS = ("--dtype", "float32", "--quantize", "4")
PUBLISHED = (*BFLOAT16, "--quantize", "4")
"""As models are published; products of such weights are slow on a CPU."""


@pytest.mark.parametrize(
    ("model", "weights"),
    [
        pytest.param("target", FOUR_BITS, id="target-4-bit", marks=pytest.mark.slow),
        pytest.param("hybrid", BFLOAT16, id="hybrid-bfloat16"),
    ],
)
def test_what_differs_in_coarse_weights_was_a_near_tie(
    model: str, weights: tuple[str, ...], tmp_path: Path
) -> None:
    size = ("--workloads", "small edit", "--context", "120", "--tokens", "28")
    comparisons = compared(tmp_path / "exact.json", model, *weights, *size)
    assert [comparison["mode"] for comparison in comparisons] == MODES.split(",")
    for comparison in comparisons:
        assert comparison["answers"] == 2
        assert comparison["proposed"] >= comparison["accepted"] > 0, "nothing was compared"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("weights", "longest"),
    [(BFLOAT16, 96), (FOUR_BITS, 96), (PUBLISHED, 16)],
    ids=["bfloat16", "4-bit", "bfloat16-4-bit"],
)
@pytest.mark.parametrize("model", ["target", "hybrid"])
def test_in_every_mode_and_workload(
    model: str, weights: tuple[str, ...], longest: int, tmp_path: Path
) -> None:
    modes = "draft 1,draft 4,draft 16,draft,ngram,chain,auto"
    length = ("--tokens", str(longest))
    comparisons = compared(tmp_path / "exact.json", model, *weights, *length, modes=modes)
    assert all(comparison["accepted"] > 0 for comparison in comparisons)


def test_a_verification_that_accepts_too_much_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Read, "accepted", property(lambda read: len(read.draft)))
    size = ("--workloads", "reasoning", "--context", "80", "--tokens", "24")
    weights = ("--dtype", "float32")
    (comparison,) = compared(
        tmp_path / "exact.json", "target", *weights, *size, modes="draft 4", status=1
    )
    ties = comparison["near_ties"]
    assert max(tie["apart"] for tie in ties) > 1.0
    printed = capsys.readouterr().out
    assert printed.count("First difference: draft 4, reasoning") == len(ties)
    assert "NOT all within the tolerance of 0.001 logits" in printed


def strictly(file: Path, *arguments: str) -> dict[str, Any]:
    """Return the command's record of strict answers."""
    models = ("--model", str(DEMO / "target"), "--draft", str(DEMO / "draft"), "--json", str(file))
    assert main(["exact", *models, *arguments]) == 0
    record: dict[str, Any] = json.loads(file.read_text())["strict"]
    return record


@pytest.mark.slow
def test_strict_answers_in_company_are_those_of_plain_decoding_alone(tmp_path: Path) -> None:
    record = strictly(tmp_path / "strict.json", "--dtype", "float32", "--strict", "4")
    assert (record["answers"], record["differ"]) == (4, 0)
    assert record["cached"] % 256 == 0
    assert record["price"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("weights", [BFLOAT16, FOUR_BITS], ids=["bfloat16", "4-bit"])
def test_strict_answers_of_coarse_weights(weights: tuple[str, ...], tmp_path: Path) -> None:
    record = strictly(tmp_path / "strict.json", *weights, "--strict", "100")
    assert record["differ"] == 0
    assert record["cached"] > 0


def test_fixed_costs_learn_nothing() -> None:
    costs = fixed_costs(flat, "small", 0.3)
    for width in (0, 1, 5, 40):
        costs.target.learn(width, 100, 77.0)
    costs.learn_draft("small", 4, 1, 100, 77.0)
    assert costs.target.plain(100) == 1.0
    assert costs.verify(40, 100) == flat(40)
    assert costs.draft("small", 1, 100) == 0.3
