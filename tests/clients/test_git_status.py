"""Git status of a launched program's folder, read by a real git from real repositories."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from omlx.clients import git_status

IDENTITY = ("-c", "user.name=a", "-c", "user.email=a@localhost", "-c", "init.defaultBranch=main")


def git(folder: Path, *arguments: str) -> str:
    command = ["git", *IDENTITY, *arguments]
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"}
    return subprocess.run(
        command, cwd=folder, env=environment, check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "my shop"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "a.py").write_text("1")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "Begin")
    return folder


class Person:
    """Receives reports; acts after each, and ends the program after the last act."""

    def __init__(self, *acts: Any) -> None:
        self.reports: list[Mapping[str, Any]] = []
        self.ended = Event()
        self._acts = list(acts)

    def send(self, report: Mapping[str, Any]) -> bool:
        self.reports.append(report)
        if self._acts:
            self._acts.pop(0)()
        if not self._acts:
            self.ended.set()
        return True

    def follow(self, folder: Path) -> list[Mapping[str, Any]]:
        git_status.follow(folder, self.send, self.ended)
        return self.reports


def test_changes_are_reported_until_the_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git_status, "LOOK_S", 0.0)
    monkeypatch.setattr(git_status, "SHARE", 0)
    src = folder / "src"
    src.mkdir()

    def branches() -> None:
        git(folder, "checkout", "-qb", "side")
        git(folder, "commit", "-qam", "By hand")

    edits = Person(lambda: (folder / "a.py").write_text("2"), branches)
    index = (folder / ".git/index").stat().st_mtime_ns
    reports = edits.follow(src)
    assert [(one["status"], one["branch"].strip(), one["running"]) for one in reports] == [
        ("", "main", False),
        (" M ../a.py\n", "main", True),
        ("", "side", False),
    ]
    assert {one["folder"] for one in reports} == {str(src)}
    assert [line[8:] for line in reports[-1]["log"].splitlines()] == ["By hand", "Begin"]
    assert index != (folder / ".git/index").stat().st_mtime_ns  # by the commit alone
    git(folder, "checkout", "-q", "--detach")
    assert Person().follow(src)[0]["branch"] == ""


def test_git_runs_no_program_that_the_repository_names(folder: Path) -> None:
    program, proof = folder / "evil.sh", folder / "proof"
    program.write_text(f"#!/bin/sh\ntouch '{proof}'\ncat\n")
    program.chmod(0o755)
    git(folder, "config", "core.fsmonitor", str(program))
    assert len(Person().follow(folder)) == 2
    git(folder, "config", "filter.a.clean", f"'{program}'")
    (folder / ".git/info/attributes").write_text("* filter=a\n")
    (folder / "a.py").write_text("3")
    assert Person().follow(folder) == []
    assert not proof.exists()
    git(folder, "-c", "core.fsmonitor=false", "status")
    assert proof.exists()  # git itself would run it


def test_a_folder_without_commits_has_no_log(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    assert Person().follow(tmp_path)[0]["log"] == ""


def test_an_output_is_bounded(folder: Path) -> None:
    for number in range(100):
        (folder / f"{'long' * 50}{number}").touch()
    assert len(Person().follow(folder)[0]["status"]) == git_status.MAX_BYTES


@pytest.mark.parametrize("script", ["exec sleep 60", "exit 1", None])
def test_nothing_is_reported_where_git_is_slow_or_fails(
    folder: Path, script: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if script is not None:
        program = folder / "git"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    monkeypatch.setattr(git_status, "GIT_S", 0.05)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin" if script else str(folder))
    with pytest.raises(FileNotFoundError) if script is None else nullcontext():
        assert Person().follow(folder) == []


def test_git_is_not_asked_outside_of_repositories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # to run it would raise
    assert Person().follow(tmp_path) == []


def test_a_server_that_wants_no_reports_gets_no_other(folder: Path) -> None:
    reports = list[Mapping[str, Any]]()

    def refuse(report: Mapping[str, Any]) -> bool:
        reports.append(report)
        return False

    git_status.follow(folder, refuse, Event())
    assert len(reports) == 1
