"""The files of services, as launchd and systemd read them."""

from __future__ import annotations

import configparser
import plistlib
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TypeAlias

import pytest

from omlx.cli.service import Launchd, Systemd

WORDS = ("org/two words", 'it\'s "quoted"', "100%", "$HOME", "back\\slash", "모델")
COMMAND = (sys.executable, "-m", "omlx", "serve", *WORDS)
Definition: TypeAlias = tuple[tuple[str, ...], Path, dict[str, str]]


@pytest.fixture
def definition(tmp_path: Path) -> Definition:
    return COMMAND, tmp_path / "log 100%.txt", {"OMLX_HOME": str(tmp_path / "a b%c")}


def test_launchd_reads_the_same_command(definition: Definition) -> None:
    _, log, variables = definition
    record = plistlib.loads(Launchd().text(*definition).encode())
    assert tuple(record["ProgramArguments"]) == COMMAND
    assert record["EnvironmentVariables"] == variables
    assert record["StandardOutPath"] == record["StandardErrorPath"] == str(log)
    assert record["Label"] == Launchd().path.stem
    assert record["RunAtLoad"] is True
    assert record["KeepAlive"] == {"SuccessfulExit": False}
    assert record["ExitTimeOut"] > 60


def test_systemd_reads_the_same_command(definition: Definition) -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.read_string(Systemd().text(*definition))
    service = unit["Service"]
    words = shlex.split(service["ExecStart"].replace("%%", "%").replace("$$", "$"))
    assert tuple(words) == COMMAND
    (variable,) = shlex.split(service["Environment"].replace("%%", "%"))
    assert variable == f"OMLX_HOME={definition[2]['OMLX_HOME']}"
    assert service["Restart"] == "on-failure"
    assert unit["Install"]["WantedBy"] == "default.target"


@pytest.mark.slow
def test_systemd_finds_no_fault(definition: Definition, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    unit = tmp_path / "omlx.service"
    unit.write_text(Systemd().text(*definition))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", str(unit)],
        env={"XDG_RUNTIME_DIR": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
