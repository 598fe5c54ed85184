"""SIGKILL while prefixes are written, rotated, evicted, entered: nothing wrong is ever read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def found_after_kills(folder: Path, times: int) -> int:
    """Return how many tokens were restored after the kills, in all."""
    command = [sys.executable, "-m", "tests.engine.disk.killed", str(folder), str(times), "7"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return int(run.stdout)


def test_a_writer_that_is_killed(tmp_path: Path) -> None:
    assert found_after_kills(tmp_path, 20) > 0


@pytest.mark.slow
def test_a_writer_that_is_killed_a_thousand_times(tmp_path: Path) -> None:
    assert found_after_kills(tmp_path, 1000) > 0
