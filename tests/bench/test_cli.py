"""`omlx bench` as a user runs it, on the bundled models."""

from __future__ import annotations

import argparse
import json
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


def test_the_engine_is_measured_into_a_table_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bench.json"
    models = (*MODEL, "--draft", str(DRAFT), "--dtype", "float32")
    size = ("--trials", "2", "--prompts", "1", "--tokens", "8", "--windows", "2")
    args = parse("engine", *models, *size, "--only", "plain,spec", "--json", str(file))
    assert run(args) == 0
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
    assert run(parse("engine", *MODEL, "--only", "spec")) == 0
    assert "speculative" not in capsys.readouterr().out


def test_speculation_has_a_short_name() -> None:
    assert parse("spec", *MODEL).run_benchmark == parse("speculation", *MODEL).run_benchmark


def test_termination_is_an_interrupt(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        assert run(parse("spec", *MODEL, "--modes", "draft 4")) == 2
        assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("command", ["engine", "speculation", "exact"])
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
        ((*MODEL, "--only", "plain,spam"), "spam: choose from"),
        ((*MODEL, "--trials", "0"), "not a number above 0"),
        ((*MODEL, "--rows", "4-1"), "has no numbers"),
        ((*MODEL, "--json", "no/such/folder/file.json"), "cannot be written"),
        ((*MODEL, "--json", str(DRAFT)), "cannot be written"),
        ((), "--model"),
    ],
)
def test_bad_flags_are_named(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        parse("engine", *arguments)
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


def test_numbers() -> None:
    args = parse("engine", *MODEL, "--windows", "1-4", "--rows", "8,2,8")
    assert args.windows == (1, 2, 3, 4)
    assert args.rows == (2, 8)
