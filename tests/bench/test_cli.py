"""The command as a user runs it, on the bundled models."""

from __future__ import annotations

import argparse
import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from omlx.bench.cli import add_arguments, run
from omlx.models.catalog.discovery import BUNDLED

DRAFT = BUNDLED / "omlx-demo/draft"


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(["engine", *arguments])


def test_table_json_and_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report, image = tmp_path / "bench.json", tmp_path / "bench.svg"
    args = parse(
        *(
            "--model",
            str(DRAFT),
            "--draft",
            str(DRAFT),
            "--dtype",
            "float32",
            "--only",
            "plain,spec,graph",
        ),
        *("--trials", "2", "--prompts", "1", "--tokens", "8", "--windows", "2", "--inflate", "1M"),
        *("--json", str(report), "--plot", str(image)),
    )
    assert run(args) == 0
    printed = capsys.readouterr().out
    assert "speculative_generate_step" in printed
    assert "geometric mean" in printed

    content = json.loads(report.read_text())
    assert content["format"] == 1
    assert content["models"]["model"]["parameters"] >= 1_000_000
    assert content["models"]["draft"]["parameters"] < 1_000_000
    assert content["models"]["model"]["dtype"] == ["float32"]
    assert set(content["versions"]) == {"omlx", "python", "mlx", "mlx-lm"}
    assert content["settings"]["windows"] == [2]
    names = [
        (result["suite"], result["params"].get("temperature")) for result in content["results"]
    ]
    assert names == [("plain", None), ("noise", None), ("spec", 0.0), ("spec", 0.8)]
    for result in content["results"]:
        assert len(result["ratio"]["samples"]) == len(result["omlx"]["samples"]) == 2
    greedy = content["results"][2]
    assert greedy["acceptance"]["omlx"] == 1.0
    assert greedy["acceptance"]["mlx_lm"] > 0.5  # it drafts past the end of an answer
    assert (greedy["exact"]["same"], greedy["exact"]["of"]) == (2, 2)

    root = ET.fromstring(image.read_text())
    assert root.tag.endswith("svg")
    assert sum(child.tag.endswith("rect") for child in root) == 1 + len(content["results"])


def test_without_a_draft_there_is_no_speculation(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(parse("--model", str(DRAFT), "--only", "spec,graph")) == 0
    assert "graph of" in capsys.readouterr().out


def test_a_folder_without_weights_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text((DRAFT / "config.json").read_text())
    for command in ("engine", "spec", "exact"):
        parser = argparse.ArgumentParser()
        add_arguments(parser)
        assert run(parser.parse_args([command, "--model", str(tmp_path)])) == 2
        told = capsys.readouterr().err
        assert "safetensors" in told
        assert "Traceback" not in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--model", "nowhere"), "no config.json"),
        (("--model", str(DRAFT), "--only", "plain,spam"), "spam: choose from"),
        (("--model", str(DRAFT), "--trials", "0"), "not a number above 0"),
        (("--model", str(DRAFT), "--inflate", "many"), "such as 20M"),
        (("--model", str(DRAFT), "--inflate", "infM"), "such as 20M"),
        (("--model", str(DRAFT), "--inflate=-5M"), "such as 20M"),
        (("--model", str(DRAFT), "--rows", "4-1"), "has no numbers"),
        (("--model", str(DRAFT), "--json", "no/such/folder/file.json"), "cannot be written"),
        (("--model", str(DRAFT), "--plot", str(DRAFT)), "cannot be written"),
        ((), "--model"),
    ],
)
def test_bad_flags_are_named(
    arguments: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        parse(*arguments)
    assert exit_.value.code == 2
    assert told in capsys.readouterr().err


def test_numbers() -> None:
    args = parse("--model", str(DRAFT), "--windows", "1-4", "--rows", "8,2,8", "--inflate", "1.5M")
    assert (args.windows, args.rows, args.inflate) == ((1, 2, 3, 4), (2, 8), 1_500_000)
