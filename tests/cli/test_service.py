"""`omlx service` with a manager that records what it is asked, and what is left afterwards."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.inside import omlx
from tests.processes import environment

pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="launchd would start it")

MANAGER = """#!/bin/sh
echo "$*" >> "$CALLS"
exit ${STATUS:-0}
"""


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "systemctl").write_text(MANAGER)
    (folder / "systemctl").chmod(0o755)
    path = f"{folder}:{environment(tmp_path)['PATH']}"
    home, config = str(tmp_path / "home"), str(tmp_path / "config")
    calls = str(tmp_path / "calls.txt")
    return {"PATH": path, "OMLX_HOME": home, "XDG_CONFIG_HOME": config, "CALLS": calls}


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_it_is_installed_and_uninstalled(tmp_path: Path, variables: dict[str, str]) -> None:
    done = omlx(tmp_path, "service", "install", "some/model", "--port", "9000", **variables)
    assert done.returncode == 0, done.stderr
    (unit,) = files(tmp_path / "config")
    assert str(unit) in done.stdout
    assert '"omlx" "serve" "some/model" "--port" "9000"' in unit.read_text()
    calls = (tmp_path / "calls.txt").read_text().splitlines()
    assert calls[-1] == "--user restart omlx.service"
    (tmp_path / "home/service.log").write_text("it began\n")
    assert omlx(tmp_path, "service", "logs", **variables).stdout == "it began\n"
    status = omlx(tmp_path, "service", "status", **variables)
    assert (status.returncode, "service.log" in status.stdout) == (1, True)  # nothing answers

    assert omlx(tmp_path, "service", "uninstall", **variables).returncode == 0
    calls = (tmp_path / "calls.txt").read_text().splitlines()
    assert calls[-1] == "--user disable --now omlx.service"
    assert files(tmp_path / "config") == []
    assert not (tmp_path / "home/service.log").exists()
    status = omlx(tmp_path, "service", "status", **variables)
    assert (status.returncode, "omlx service install" in status.stdout) == (1, True)


def test_what_its_manager_refuses_is_said_and_leaves_nothing(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    done = omlx(tmp_path, "service", "install", **variables, STATUS="3")
    assert (done.returncode, "systemctl --user" in done.stderr) == (2, True)
    assert files(tmp_path / "config") == []


def test_its_file_can_be_read_before(tmp_path: Path, variables: dict[str, str]) -> None:
    done = omlx(tmp_path, "service", "install", "--print", "some/model", **variables)
    assert '"some/model"' in done.stdout
    assert not (tmp_path / "config").exists()
