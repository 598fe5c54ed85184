"""`python -m lab.bench speculation`: its report, and that tokens are the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab.bench.__main__ import main
from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.package import window_from_bench

DRAFT = BUNDLED / "omlx-demo/draft"
MODEL = ("--model", str(DRAFT), "--dtype", "float32")
SMALL = ("speculation", *MODEL, "--trials", "1", "--context", "120", "--widths", "2,5")


def reported(file: Path, *arguments: str) -> dict[str, Any]:
    """Run the command and return its JSON."""
    assert main([*SMALL, *arguments, "--json", str(file)]) == 0
    report: dict[str, Any] = json.loads(file.read_text())
    return report


def test_a_single_stream_is_compared_with_plain_decoding(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    modes = ("--draft", str(DRAFT), "--modes", "draft 2,auto")
    report = reported(file, *modes, "--workloads", "prose", "--streams", "1")
    assert report["format"] == "omlx-bench-spec/1"
    fixed, auto = report["results"]
    for result in (fixed, auto):
        assert result["errors"] == 0
        assert result["checksum"] == result["plain_checksum"], result["divergences"]
        assert len(result["gain"]["samples"]) == 1
    assert fixed["accepted"] > 0.8 * fixed["proposed"] > 0
    (comparison,) = report["auto_against_best_fixed"]
    assert comparison["ratio"] == pytest.approx(comparison["gain"] / comparison["other_gain"])
    declared = window_from_bench(file)
    assert report["draft_window"]["initial_window"] == declared.length.initial == 2


def test_streams_run_together(tmp_path: Path) -> None:
    size = ("--modes", "ngram", "--workloads", "hostile", "--streams", "2")
    (result,) = reported(tmp_path / "report.json", *size)["results"]
    assert result["streams"] == 2
    assert result["errors"] == 0
    assert result["divergences"] == []
    assert set(result["reasons"]) <= {"spec.on", "spec.observing", "spec.off.does_not_pay"}


@pytest.mark.slow
def test_without_a_draft_only_prompt_lookup_is_measured(tmp_path: Path) -> None:
    size = ("--workloads", "verbatim", "--streams", "1", "--quantize", "4")
    report = reported(tmp_path / "report.json", *size)
    assert [result["mode"] for result in report["results"]] == ["ngram", "auto"]
    assert report["draft_window"] is None
    assert "uint32" in report["models"]["model"]["model"]["dtype"]


def test_a_report_out_of_time_names_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    size = ("--modes", "ngram", "--workloads", "tools,prose", "--streams", "1", "--budget", "0")
    assert main([*SMALL, *size]) == 0
    printed = capsys.readouterr().out
    assert "model: tools, ngram: 0 of 1 trials" in printed
    assert "model: prose, ngram: 0 of 1 trials" in printed


def test_a_mode_that_cannot_run_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--modes", "ngram,draft 4,chain"]) == 2
    assert capsys.readouterr().err.startswith("draft 4, chain: without a draft model")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--modes", "draft 3"), "draft 3: choose from"),
        (("--workloads", "chess"), "chess: choose from"),
        (("--streams", "2-1"), "has no numbers"),
        (("--budget", "nan"), "not a number from 0 on"),
        (("--budget=-1",), "not a number from 0 on"),
    ],
)
def test_bad_values_are_named(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([*SMALL, *arguments])
    assert message in capsys.readouterr().err
