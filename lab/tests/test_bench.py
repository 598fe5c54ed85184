"""`python -m lab.bench` as a user runs it, and its progress on a terminal and in a log."""

from __future__ import annotations

import io
import signal
import sys
from pathlib import Path

import pytest

from lab.bench.__main__ import COMMANDS, main, parsed
from lab.bench.console import Progress
from omlx.models.catalog.discovery import BUNDLED
from tests.clock import Clock

DRAFT = BUNDLED / "omlx-demo/draft"
MODEL = ("--model", str(DRAFT))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_options(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed([command, "--help"])
    assert ended.value.code == 0
    assert f"python -m lab.bench {command}" in capsys.readouterr().out


def test_speculation_has_a_short_name() -> None:
    assert parsed(["spec", *MODEL]).run == parsed(["speculation", *MODEL]).run


def test_termination_is_an_interrupt(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        assert main(["spec", *MODEL, "--modes", "draft 4"]) == 2
        assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("command", ["speculation", "exact"])
def test_a_folder_without_weights_is_reported_in_one_line(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text((DRAFT / "config.json").read_text())
    assert main([command, "--model", str(tmp_path)]) == 2
    printed = capsys.readouterr().err
    assert "safetensors" in printed
    assert "Traceback" not in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "nowhere"), "no config.json"),
        ((*MODEL, "--workloads", "prose,spam"), "spam: choose from"),
        ((*MODEL, "--trials", "0"), "not a number above 0"),
        ((*MODEL, "--streams", "4-1"), "has no numbers"),
        ((*MODEL, "--json", "no/such/folder/file.json"), "cannot be written"),
        ((*MODEL, "--json", str(DRAFT)), "cannot be written"),
        ((), "--model"),
    ],
)
def test_bad_flags_are_named(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        parsed(["spec", *arguments])
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


def test_numbers() -> None:
    assert parsed(["spec", *MODEL, "--streams", "1-4"]).streams == (1, 2, 3, 4)
    assert parsed(["spec", *MODEL, "--streams", "8,2,8"]).streams == (2, 8)


def work(progress: Progress, clock: Clock, units: int, seconds: float) -> None:
    for i in range(units):
        progress.start(f"unit {i}")
        clock.now += seconds
        progress.tick()


def test_a_log_has_a_line_every_half_minute_with_what_runs_and_the_time_left(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    with Progress(60, "pair", clock=clock) as progress:
        progress.start("what passes cost")
        clock.now += 300
        work(progress, clock, 10, seconds=12)
        progress.write("a result")
    assert capsys.readouterr().err.splitlines() == [
        "what passes cost: 0 of 60 pairs",
        "unit 0: 0 of 60 pairs",
        "unit 3: 3 of 60 pairs, 11 min left",
        "unit 6: 6 of 60 pairs, 11 min left",
        "unit 9: 9 of 60 pairs, 10 min left",
        "a result",
    ]


def test_the_time_left_ends_at_the_deadline(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with Progress(100, "pair", deadline=clock.now + 300, clock=clock) as progress:
        work(progress, clock, 4, seconds=120)
    assert [line.partition(", ")[2] for line in capsys.readouterr().err.splitlines()] == [
        "",
        "3 min left",
        "1 min left",
        "0 min left",
    ]


def test_a_terminal_has_a_bar_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with Progress(3, "pair") as progress:
        work(progress, Clock(), 3, seconds=60)
    shown = terminal.getvalue()
    assert "unit 2: 100%|" in shown
    assert "of 3 pairs" not in shown
