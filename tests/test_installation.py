"""Commands of this installation: never a bare name on an index."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from omlx import machine
from omlx.machine import extra_command, program_words


def test_an_extra_is_installed_into_this_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = shlex.split(extra_command("vision"))
    assert sys.executable in words
    assert words[-2:] == ["-e", f"{Path(__file__).resolve().parents[1]}[vision]"]
    monkeypatch.setattr(machine, "_ROOT", tmp_path)  # as in a wheel
    words = shlex.split(extra_command("vision"))
    assert sys.executable in words
    assert {word.partition(">")[0] for word in words[words.index("install") + 1 :]} >= {
        "mlx-vlm",
        "pillow",
    }
    assert not any(word.startswith("omlx") for word in words)


def test_the_program_is_named_so_that_a_shell_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = subprocess.run([*program_words(), "--version"], capture_output=True, check=True)
    assert done.stdout.startswith(b"omlx ")
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    assert program_words() == [str(tmp_path / "python"), "-m", "omlx"]
    (tmp_path / "omlx").write_text("#!/bin/sh\n")
    (tmp_path / "omlx").chmod(0o755)
    assert program_words() == ["omlx"]
