"""`python -m lab.bench stages`: a staged model against one process, small."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from lab.bench import stages as command
from lab.bench.series import Series
from lab.bench.stages import BARS, MIN_CORES, MIN_STEP_MS, comparisons
from omlx.models.catalog.discovery import BUNDLED


def test_gains_are_compared_within_trials() -> None:
    times = {
        ("alone", "plain"): Series((10.0, 20.0)),
        ("stages", "plain"): Series((11.0, 21.0)),
        ("alone", "draft"): Series((5.0, 10.0)),
        ("stages", "draft"): Series((5.5, 10.5)),
        ("alone", "prefill"): Series((90.0, 90.0)),
        ("stages", "prefill"): Series((60.0, 45.0)),
    }
    found = comparisons(times)
    assert found["plain step, stages / alone"].values == (1.1, 1.05)
    assert found["prefill, alone / stages"].values == (1.5, 2.0)
    assert found["gain in stages / alone"].values == (1.0, 1.0)


@pytest.mark.parametrize(
    ("name", "value", "verdict"),
    [
        ("plain step", 1.05, "goal met"),
        ("plain step", 1.1, "gate met"),
        ("plain step", 1.2, "missed"),
        ("prefill", 1.7, "goal met"),
        ("prefill", 1.5, "gate met"),
        ("prefill", 0.9, "missed"),
        ("gain in stages / alone", 0.95, "gate met"),
    ],
)
def test_figures_are_judged_by_gate_and_goal(name: str, value: float, verdict: str) -> None:
    assert BARS[name].judge(value, MIN_CORES, MIN_STEP_MS)[2] == verdict


def test_speed_is_judged_only_where_the_machine_and_the_model_allow_it() -> None:
    for cores, step_ms, word in ((2, 50.0, "2 cores"), (8, 5.0, "5.0 ms")):
        assert word in BARS["prefill"].judge(9.9, cores, step_ms)[2]
        assert BARS["control path"].judge(9.9, cores, step_ms)[2] == "goal met"


@pytest.mark.slow
def test_every_figure_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "IDLE_S", 0.1)
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    folders = ("--model", str(BUNDLED / "omlx-demo/target"))
    folders += ("--draft", str(BUNDLED / "omlx-demo/draft"))
    size = ("--trials", "1", "--tokens", "8", "--prompt", "32")
    file = tmp_path / "r.json"
    assert command.run(parser.parse_args([*folders, *size, "--json", str(file)])) == 0
    report = json.loads(file.read_text())
    assert set(report["idle_share"]) == {"serve", "stage"}
    assert all(figures["median"] > 0 for figures in report["ms"].values())
    assert len(report["ms"]) == 6
    assert 0 < report["control_us"]["plain"]["median"] < 1e6
    printed = capsys.readouterr().out
    assert all(name in printed for name in BARS)
