"""`python -m lab.bench machine` on a bundled model: its tables hold what was measured."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lab.bench import kernels, machine
from lab.bench.__main__ import main
from lab.bench.console import Progress
from lab.bench.kernels import Part, Row
from lab.bench.machine import BUDGET_S, page, parts
from lab.bench.subject import Subject, read_subject
from omlx.models.catalog.discovery import BUNDLED
from tests.cli.inside import Capture, alone

__all__ = ["alone"]


@pytest.fixture(scope="module")
def subject() -> Subject:
    draft = BUNDLED / "omlx-demo/draft"
    return read_subject(draft, draft)


def rows(part: Part, budget: int = 1 << 30) -> list[Row]:
    """Measure a part until it has asked `budget` times whether its time is over."""
    asked = iter(range(budget))
    with Progress(part.units, "step") as progress:
        measured = list(part.measure(progress, lambda: next(asked, None) is None))
    assert all(len(row) == len(part.head) for row in measured)
    return measured


def column(measured: list[Row], place: int) -> list[float]:
    return [float(row[place]) for row in measured]


def test_passes_by_width_are_those_of_the_calibration(subject: Subject) -> None:
    measured = rows(machine.widths(subject, 60))
    names = [row[0] for row in measured]
    assert names[:3] == ["plain", "1", "2"]
    assert min(column(measured, 1)) > 0
    assert measured[0][2] == "1.00"
    assert any(row[3] and row[4] for row in measured)


def test_decoding_alone_and_in_batches(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "ANSWER", 8)
    measured = rows(machine.decoding(subject, 60))
    assert [row[0] for row in measured] == ["1", "2", "4"]
    assert min(column(measured, 1)) > 0
    assert measured[0][3] == "1.00"


def test_exactness_of_every_mode(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "EXACT_TOKENS", 12)
    *modes, tolerance = rows(machine.exactness(subject, 60))
    assert [row[0] for row in modes] == list(machine.EXACT_MODES)
    assert sum(int(row[4]) for row in modes) > 0, "nothing was accepted, so nothing compared"
    assert all(float(row[6] or 0) <= float(tolerance[6]) for row in modes)


def test_a_long_prompt_is_reported_at_doubling_lengths(subject: Subject) -> None:
    measured = rows(machine.prefill(subject, 60, longest=6500))
    assert [row[0] for row in measured] == ["2,048", "4,096", "6,499"]
    assert min(column(measured, 1)) > 0
    assert min(column(measured, 3)) > 0
    cut = rows(machine.prefill(subject, 60, longest=6500), budget=0)
    assert [row[0] for row in cut] == ["2,048", "ended:"]
    assert cut[-1][1] == "time"


def test_pauses_are_kept_warm_only_in_the_last_row(subject: Subject) -> None:
    slept: list[float] = []
    measured = rows(machine.pauses(subject, 60, slept.append))
    assert [row[0] for row in measured] == list(machine.PAUSES)
    assert slept[:3] == [3.0] * 3
    assert set(slept[3:]) == {0.5}


def test_kernels_begin_with_equality_and_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "SHAPE", (128, 64))
    measured = rows(kernels.products(60))
    assert [int(row[0]) for row in measured] == list(kernels.ROWS)
    assert measured[0][2:4] == ("1.00", "0")
    assert max(column(measured, 3) + column(measured, 6)) < 0.1
    monkeypatch.setattr(kernels, "CONTEXT", 32)
    assert [row[0] for row in rows(kernels.attention(60), budget=1)] == ["1", "4"]


def test_calls_leave_the_limits_as_they_were() -> None:
    first, second = rows(kernels.calls(60)), rows(kernels.calls(60))
    assert first == second
    assert [row[0] for row in first][:2] == ["synchronize", "clear_cache"]


def test_the_page_names_the_model_and_has_every_part(subject: Subject) -> None:
    head, *texts = page(subject, 0.0)
    assert re.match(r"Model: draft, llama, 0\.\d M parameters, \w+", head)
    assert [text.splitlines()[0] for text in texts] == [part.title for part in parts(subject)]


def test_the_parts_fit_into_the_budget(subject: Subject) -> None:
    assert sum(part.seconds for part in parts(subject)) <= BUDGET_S < 600


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time to measure anything."""
    monkeypatch.setattr("lab.bench.machine.BUDGET_S", 0.0)


def test_the_command_prints_one_block_to_paste(alone: Path, short: None, capsys: Capture) -> None:
    assert main(["machine"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("```\nMachine\n")
    assert shown.endswith("No time was left.\n\n```\n")
    for words in ("Metal", "heat", "mlx-lm", "Model: target, llama"):
        assert words in shown, words
    assert str(alone) not in shown


@pytest.mark.parametrize(
    ("name", "limit", "said"),
    [("org/none", "1GB", "org/none"), ("omlx-demo/target", "2MB", "needs 0.01 GB")],
)
def test_a_model_that_cannot_be_measured(
    name: str,
    limit: str,
    said: str,
    alone: Path,
    short: None,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMLX_MEMORY_LIMIT", limit)
    assert main(["machine", name]) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.out == ""
