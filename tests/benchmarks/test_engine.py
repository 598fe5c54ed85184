"""`python -m benchmarks engine`: inflated models, and the suites that a user does not need."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from omlx.models.catalog.discovery import BUNDLED

DRAFT = BUNDLED / "omlx-demo/draft"


def test_an_inflated_model_and_its_graphs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "report.json"
    models = ("--model", str(DRAFT), "--draft", str(DRAFT), "--inflate", "1M")
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert main(["engine", *models, "--only", "graph", "--json", str(file)]) == 0
    finally:
        signal.signal(signal.SIGTERM, before)
    report = json.loads(file.read_text())
    assert report["models"]["model"]["parameters"] >= 1_000_000
    assert report["models"]["draft"]["parameters"] < 1_000_000
    assert report["settings"]["inflate"] == 1_000_000
    assert report["results"] == []
    assert set(report["graph_us"]) == {"model", "draft"}
    assert "graph of" in capsys.readouterr().out
