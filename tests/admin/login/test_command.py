"""The command on the login page prints a link where it is pasted."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from omlx.admin.login import login_command
from omlx.settings.schema import table
from tests.admin.running import Administered


def test_it_names_the_program_and_the_home_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    default = table()["home"].default
    assert isinstance(default, Path)
    program = tmp_path / "bin" / "omlx"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    assert login_command(default, "127.0.0.1") == "omlx dashboard"
    other = login_command(tmp_path / "a home", "::1")
    assert shlex.split(other) == ["omlx", "dashboard", "--home", str(tmp_path / "a home")]
    monkeypatch.setenv("PATH", str(tmp_path))
    words = shlex.split(login_command(default, "127.0.0.1"))
    assert words == [sys.executable, "-m", "omlx", "dashboard"]
    assert login_command(tmp_path, "192.168.1.20") == "omlx dashboard"


def test_it_runs_where_the_program_is_not_on_the_path(server: Administered) -> None:
    with server.browser(logged_in=False) as client:
        page = client.get("/admin/login").text
    command = page.partition("data-copied>")[2].partition("</code>")[0]
    assert str(server.home) in command
    done = subprocess.run(
        ["sh", "-c", f"{command} --print"],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "omlx serve" in done.stderr  # this server has not published its address
    assert str(server.home) in done.stderr
