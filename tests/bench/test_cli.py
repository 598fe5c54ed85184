"""`omlx bench` as a user runs it, on the bundled models."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path

import pytest

from omlx.bench.cli import add_arguments, run
from omlx.models.catalog.discovery import BUNDLED

DRAFT = BUNDLED / "omlx-demo/draft"
MODEL = ("--model", str(DRAFT))


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(arguments)


def test_speculation_has_a_short_name() -> None:
    assert parse("spec", *MODEL).run_benchmark == parse("speculation", *MODEL).run_benchmark


def test_termination_is_an_interrupt(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        assert run(parse("spec", *MODEL, "--modes", "draft 4")) == 2
        assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("command", ["speculation", "exact"])
def test_a_folder_without_weights_is_reported_in_one_line(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text((DRAFT / "config.json").read_text())
    assert run(parse(command, "--model", str(tmp_path))) == 2
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
        parse("spec", *arguments)
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


def test_numbers() -> None:
    assert parse("spec", *MODEL, "--streams", "1-4").streams == (1, 2, 3, 4)
    assert parse("spec", *MODEL, "--streams", "8,2,8").streams == (2, 8)
