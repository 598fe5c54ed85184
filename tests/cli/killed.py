"""A server in a process of its own, for tests that kill it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.processes import environment
from tests.server.running import PATIENCE_S


@contextmanager
def serving(
    home: Path, model: str, end: signal.Signals, *arguments: str
) -> Iterator[tuple[httpx.Client, int]]:
    """A client of the server, and the server's process; at the end of the block the process gets
    the signal `end`."""
    command = [sys.executable, "-m", "omlx", "serve", model, "--port", "0", *arguments]
    with (home / "errors").open("a") as errors:
        process = subprocess.Popen(
            command, env=environment(home), stdout=subprocess.PIPE, stderr=errors, text=True
        )
    try:
        assert process.stdout is not None
        found = next(filter(None, (re.search(r"http://\S+:\d+", line) for line in process.stdout)))
        with httpx.Client(base_url=found[0], timeout=PATIENCE_S) as client:
            yield client, process.pid
    finally:
        process.send_signal(end)
        process.communicate()
