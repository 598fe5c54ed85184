"""What processes of tests have in common."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def environment(home: Path, **more: str) -> dict[str, str]:
    """The variables of a process of its own, with `more`: none that configure omlx or the hub.

    Idle servers measure nothing: they would take the processor from other tests.
    """
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("OMLX_", "HF_"))
    }
    # A server on a terminal opens the dashboard.
    return {**kept, "HOME": str(home), "OMLX_CALIBRATE": "off", "BROWSER": "true", **more}


def into_closed_pipe(home: Path, *arguments: str, unbuffered: str) -> tuple[int, str]:
    """Run `python -m` with standard output whose reader has gone; return its status and errors."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", *arguments]
    variables = environment(home, PYTHONUNBUFFERED=unbuffered)
    try:
        ended = subprocess.run(
            command, env=variables, stdout=writer, stderr=subprocess.PIPE, text=True, check=False
        )
    finally:
        os.close(writer)
    return ended.returncode, ended.stderr
