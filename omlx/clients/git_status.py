"""Git status of a launched program's folder, at its start and end, and in between.

The program's next conversation states it. git takes no locks, and runs no program that the
configuration in the repository names. Trees where git fails or is slow are not followed.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping
from math import inf
from pathlib import Path
from threading import Event, Timer
from typing import Any, Final
from unicodedata import normalize

PROGRAMS: Final = ("claude",)
"""Programs that state a git status; the server knows whether this version does."""

GIT_S: Final = 2.0
"""Seconds per command of git, at most — a larger tree is not followed."""

LOOK_S: Final = 20.0
"""Seconds between two looks."""

SHARE: Final = 100
"""Least ratio of the time between two looks and the time of a look."""

REPEAT_S: Final = 60.0
"""Seconds until an unchanged status is sent again — the server may have been restarted."""

MAX_BYTES: Final = 8 << 10
"""Bytes of an output, at most — Claude Code states 2,000 characters of a status."""

_GIT: Final = ("git", "-c", "core.fsmonitor=false", "-c", "log.showSignature=false")
_VARIABLES: Final = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
_COMMANDS: Final = {  # as Claude Code runs them
    "status": ("status", "--short", "--ignore-submodules=dirty"),
    "log": ("log", "--oneline", "-n", "5"),
    "branch": ("branch", "--show-current"),
}
_ALWAYS: Final = "core.repositoryformatversion"
_RUNS: Final = rf"^(filter|include|includeif)\.|^remote\..*\.promisor$|^{_ALWAYS}$"
"""Names of settings by which `git status` runs programs, and of one in every repository."""


def follow(folder: Path, send: Callable[[Mapping[str, Any]], bool], ended: Event) -> None:
    """Send the git status of a folder: now, after changes, once `ended` is set.

    Returns earlier where git fails, or `send` returns False.
    """
    if not _may_follow(folder):
        return
    sent, sent_at = None, -inf
    while True:
        last, started = ended.is_set(), time.monotonic()
        status = _read(folder)
        if status is None:
            return
        if last or status != sent or started >= sent_at + REPEAT_S:
            name, running = normalize("NFC", str(folder)), sent is not None and not last
            if not send({"folder": name, **status, "running": running}):
                return
            sent, sent_at = status, started
        if last:
            return
        ended.wait(max(LOOK_S, SHARE * (time.monotonic() - started)))


def _may_follow(folder: Path) -> bool:
    """Whether a folder is in a repository whose own configuration names no programs."""
    if not any((parent / ".git").exists() for parent in (folder, *folder.parents)):
        return False
    found = _git(folder, "config", "--show-scope", "--name-only", "--get-regexp", _RUNS)
    own = [line for line in (found or "").splitlines() if line.startswith(("local", "worktree"))]
    return [line.split("\t")[-1] for line in own] == [_ALWAYS]


def _read(folder: Path) -> dict[str, str] | None:
    """Return the outputs of git by field of a report."""
    outputs = {field: _git(folder, *command) for field, command in _COMMANDS.items()}
    if outputs["status"] is None:
        return None
    return {field: output or "" for field, output in outputs.items()}  # no commit yet: no log


def _git(folder: Path, *arguments: str) -> str | None:
    """Return the first `MAX_BYTES` of git's output; None if git fails or takes `GIT_S`."""
    process = subprocess.Popen(
        [*_GIT, *arguments],
        cwd=folder,
        env={**os.environ, **_VARIABLES},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is the program's
    )
    late = Timer(GIT_S, process.kill)
    late.start()
    try:
        with process:
            assert process.stdout is not None
            output = process.stdout.read(MAX_BYTES)
    finally:
        late.cancel()
    is_whole = len(output) < MAX_BYTES  # else the closed pipe may have ended git
    return None if is_whole and process.returncode else output.decode(errors="replace")
