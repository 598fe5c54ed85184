"""Reports as charts, and in a page."""

from __future__ import annotations

import argparse
import json
import xml.etree.ElementTree as ET
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from lab.bench import document, plot
from lab.bench.document import BEGIN, END
from lab.bench.engine.result import EngineResult
from lab.bench.engine.suites import EngineCase
from lab.bench.series import Series

pytest.importorskip("matplotlib")

WORKLOADS = ("verbatim", "small edit", "prose")
MODES = ("draft 2", "auto")
ROOT = Path(__file__).resolve().parents[2]


def result(workload: str, mode: str) -> dict[str, Any]:
    gain = {"min": 0.9, "median": 1.5, "max": 7.0}
    case = {"model": "model", "streams": 1, "workload": workload, "mode": mode}
    return {**case, "gain": gain, "checksum": "a", "plain_checksum": "a", "errors": 0}


def report() -> dict[str, Any]:
    model = {"name": "m", "architecture": "llama", "parameters": 5, "dtype": ["float32"]}
    return {
        "format": "omlx-bench-spec/1",
        "title": "A title",
        "machine": {"platform": "Linux", "cores": 2, "device": "cpu", "preloaded": ["blas.so"]},
        "versions": {"mlx": "1", "mlx-lm": "2"},
        "settings": {"context": 1200, "trials": 3, "quantize": 4},
        "models": {"model": {"model": model}},
        "results": [result(workload, mode) for mode, workload in product(MODES, WORKLOADS)],
        "divergences": ["case: trial 1"],
        "missing": ["case: 0 of 3 trials"],
        "tables": [
            {"title": "All figures", "rows": [["workload"], ["prose"]]},
            {"title": "Gains", "rows": [["workload", "auto"], ["prose", "1.5"]]},
        ],
    }


def write_page(page: Path, *reports: Path) -> int:
    parser = argparse.ArgumentParser()
    document.add_arguments(parser)
    return document.run(parser.parse_args([str(page), *map(str, reports)]))


def bars(image: Path) -> list[str]:
    ids = (node.get("id", "") for node in ET.fromstring(image.read_text()).iter())
    return [name for name in ids if name.startswith(plot.BAR)]


def test_a_chart_has_a_bar_for_every_result_and_every_label(tmp_path: Path) -> None:
    image = tmp_path / "chart.svg"
    plot.save_speedups(image, report()["results"], "A title")
    assert len(bars(image)) == len(WORKLOADS) * len(MODES)
    text = image.read_text()
    for label in (*WORKLOADS, *MODES, "A title", "model, 1 stream"):
        assert label in text
    plot.save_speedups(tmp_path / "again.svg", report()["results"], "A title")
    assert (tmp_path / "again.svg").read_text() == text


def test_a_chart_of_ratios_leaves_out_what_was_not_timed(tmp_path: Path) -> None:
    def measured(name: str, *ratios: float) -> EngineResult:
        series = Series(ratios)
        case = EngineCase("plain", name, "generate_step", [])
        return EngineResult(case, series, series, series, series, None, None)

    image = tmp_path / "chart.svg"
    results = [measured("T=0", 1.1, 1.2), measured("empty", float("nan"))]
    plot.save_ratios(image, results, "A title")
    assert len(bars(image)) == 1
    assert "plain: T=0" in image.read_text()


def test_a_page_takes_the_reports_between_its_marks(tmp_path: Path) -> None:
    page, file = tmp_path / "page.md", tmp_path / "report.json"
    page.write_text(f"# Title\n\n{BEGIN}\nof last year\n{END}\n\nThe end.\n", encoding="utf-8")
    file.write_text(json.dumps(report()), encoding="utf-8")
    for _ in range(2):
        assert write_page(page, file) == 0
        text = page.read_text(encoding="utf-8")
        assert text.startswith("# Title\n")
        assert text.endswith("The end.\n")
        assert "of last year" not in text
        assert text.count("### A title") == 1
        assert "| prose | 1.5 |" in text
        assert text.index("**Gains**") < text.index("<summary>All figures</summary>")
        assert "4 bit. About 1,200 tokens of context, median of 3 trials" in text
        assert "In 6 of 6 comparisons" in text
        assert "- case: trial 1" in text
        assert "](measured/report.svg)" in text
        assert len(bars(tmp_path / "measured/report.svg")) == 6


def test_a_page_without_marks_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, file = tmp_path / "page.md", tmp_path / "report.json"
    page.write_text("# Title\n", encoding="utf-8")
    file.write_text(json.dumps(report()), encoding="utf-8")
    assert write_page(page, file) == 2
    assert "needs the marks" in capsys.readouterr().err
    assert page.read_text(encoding="utf-8") == "# Title\n"
    assert not (tmp_path / "measured").exists()


def test_a_page_takes_no_other_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, other = tmp_path / "page.md", tmp_path / "other.json"
    page.write_text(f"{BEGIN}{END}", encoding="utf-8")
    other.write_text('{"format": 1}')
    assert write_page(page, other) == 2
    assert "other.json is no report" in capsys.readouterr().err
    assert page.read_text(encoding="utf-8") == f"{BEGIN}{END}"


def test_the_page_of_the_documentation_has_its_marks() -> None:
    page = (ROOT / "docs/benchmarks.md").read_text(encoding="utf-8")
    assert page.count(BEGIN) == 1
    assert page.count(END) == 1
