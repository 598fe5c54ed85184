"""What commands advise: similar names, doubtful values, the example request, a full disk."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from omlx.admin.models.model_snapshot import suggested
from omlx.cli.main import main
from omlx.cli.output import BOLD, columns, styled
from omlx.models.catalog.discovery import BUNDLED, discover
from omlx.process_memory import machine_bytes
from omlx.settings import file
from omlx.settings.schema import Settings
from tests.cli.test_main import Capture, alone

__all__ = ["alone"]


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["srve"], 2, "Did you mean: omlx serve?"),
        (["zzzz"], 2, "There is no command 'zzzz'"),
        (["config", "get", "prot"], 2, "Unknown setting 'prot'. Did you mean: port?"),
        (["config", "list", "--model", "targt"], 2, "Did you mean: omlx-demo/target?"),
        (["config", "list", "--model", "Omlx-Demo/TARGET"], 2, "Did you mean: omlx-demo/target?"),
        (["config", "list", "--model", "llama-70b"], 2, "omlx models"),
    ],
)
def test_a_slip_is_answered_with_a_similar_name(
    alone: Path, capsys: Capture, words: list[str], status: int, said: str
) -> None:
    assert main(words) == status
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["help"], ["--help"]])
def test_omlx_alone_prints_its_help(alone: Path, capsys: Capture, words: list[str]) -> None:
    if words == ["--help"]:
        with pytest.raises(SystemExit, match="0"):
            main(words)
    else:
        assert main(words) == 0
    shown = capsys.readouterr()
    assert "usage: omlx" in shown.out
    assert shown.err == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["memory_limit", f"{2 * machine_bytes() >> 30}GB"], "This machine has"),
        (["default_model", "nope"], "No model on this machine has the name 'nope'"),
        (["draft_model", "nope", "--model", "omlx-demo/target"], "nope"),
    ],
)
def test_a_doubtful_value_is_stored_and_said(
    alone: Path, capsys: Capture, words: list[str], said: str
) -> None:
    assert main(["config", "set", *words]) == 0
    error = capsys.readouterr().err
    assert "Stored, but" in error
    assert said in error
    assert main(["config", "get", *words[:1], *words[2:]]) == 0
    assert capsys.readouterr().out.strip() == words[1]


def test_a_sound_value_is_stored_in_silence(alone: Path, capsys: Capture) -> None:
    assert main(["config", "set", "memory_limit", "1GB"]) == 0
    assert main(["config", "set", "default_model", "target"]) == 0
    assert capsys.readouterr().err == ""


def test_values_are_listed_in_words_and_units(alone: Path, capsys: Capture) -> None:
    assert main(["config", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["SETTING", "VALUE", "FROM"]
    rows = {line.split()[0]: line.split()[1:] for line in lines[1:]}
    assert rows["answer_disk"] == ["256", "MB", "default"]
    assert main(["config", "get", "answer_disk"]) == 0
    assert capsys.readouterr().out == "256MB\n"


def test_colours_are_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen:
        def isatty(self) -> bool:
            return True

    assert styled("x", BOLD) == "x"
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout", Screen())
    assert columns([("a", "b")], ["NAME", "X"]) == "\x1b[1mNAME  X\x1b[0m\na     b\n"
    monkeypatch.setenv("NO_COLOR", "1")
    assert styled("x", BOLD) == "x"


def test_the_suggested_model_is_neither_a_draft_nor_broken(tmp_path: Path) -> None:
    broken = tmp_path / "models/a-broken"
    shutil.copytree(BUNDLED / "omlx-demo/target", broken)
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    found = discover(Settings(home=tmp_path), {"HOME": str(tmp_path)})
    models = [entry for entry in found.usable if entry.name != "vision"]
    assert suggested(models, 1 << 40) == "omlx-demo/target"
    pair = [entry for entry in models if entry.name in ("a-broken", "draft")]
    assert suggested(pair, 1 << 40) == "omlx-demo/draft"
    assert suggested(pair[:1], 0) == pair[0].id
    assert suggested([], 1 << 40) is None


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(file, "replace_file", full)
    values: Mapping[str, Any] = {"a": 1}
    with file.locked(tmp_path), pytest.raises(file.ConfigError, match="disk is full"):
        file.write(tmp_path / "x.json", values)
