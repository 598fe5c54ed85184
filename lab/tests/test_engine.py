"""`python -m lab.bench engine`: its report and errors, inflated models, graphs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.bench.__main__ import main
from omlx.models.catalog.discovery import BUNDLED

DRAFT = BUNDLED / "omlx-demo/draft"
MODEL = ("--model", str(DRAFT))


def bench(*arguments: str) -> int:
    return main(["engine", *arguments])


def test_the_engine_is_measured_into_a_table_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bench.json"
    models = (*MODEL, "--draft", str(DRAFT), "--dtype", "float32")
    size = ("--trials", "2", "--prompts", "1", "--tokens", "8", "--windows", "2")
    assert bench(*models, *size, "--only", "plain,spec", "--json", str(file)) == 0
    printed = capsys.readouterr().out
    assert "speculative_generate_step" in printed
    assert "geometric mean" in printed

    content = json.loads(file.read_text())
    assert content["format"] == 1
    assert content["models"]["model"]["dtype"] == ["float32"]
    assert set(content["versions"]) == {"omlx", "python", "mlx", "mlx-lm"}
    assert content["settings"]["windows"] == [2]
    results = content["results"]
    names = [(result["suite"], result["params"].get("temperature")) for result in results]
    assert names == [("plain", None), ("noise", None), ("spec", 0.0), ("spec", 0.8)]
    for result in results:
        assert len(result["ratio"]["samples"]) == len(result["omlx"]["samples"]) == 2
    greedy = results[2]
    assert greedy["acceptance"]["omlx"] == 1.0
    assert greedy["acceptance"]["mlx_lm"] > 0.5  # it drafts past the end of an answer
    assert (greedy["exact"]["same"], greedy["exact"]["of"]) == (2, 2)


def test_without_a_draft_nothing_is_speculated(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(*MODEL, "--only", "spec") == 0
    assert "speculative" not in capsys.readouterr().out


def test_a_folder_without_weights_is_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text((DRAFT / "config.json").read_text())
    assert bench("--model", str(tmp_path)) == 2
    printed = capsys.readouterr().err
    assert "safetensors" in printed
    assert "Traceback" not in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("--only", "plain,spam"), "spam: choose from"), (("--rows", "4-1"), "has no numbers")],
)
def test_bad_flags_are_named(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["engine", *MODEL, *arguments])
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


def test_an_inflated_model_and_its_graphs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "report.json"
    models = ("--model", str(DRAFT), "--draft", str(DRAFT), "--inflate", "1M")
    assert bench(*models, "--only", "graph", "--json", str(file)) == 0
    report = json.loads(file.read_text())
    assert report["models"]["model"]["parameters"] >= 1_000_000
    assert report["models"]["draft"]["parameters"] < 1_000_000
    assert report["settings"]["inflate"] == 1_000_000
    assert report["results"] == []
    assert set(report["graph_us"]) == {"model", "draft"}
    assert "graph of" in capsys.readouterr().out
