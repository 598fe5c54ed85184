"""`omlx serve` as a process of its own, up and asked over its socket."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from tests.processes import environment
from tests.server.running import PATIENCE_S

OMLX: Final = (sys.executable, "-m", "omlx")


@dataclass(frozen=True)
class Serving:
    """`announced` is what it wrote until it took requests, line by line."""

    process: subprocess.Popen[str]
    announced: list[str]
    _errors: Path

    @property
    def url(self) -> str:
        (found, *_) = re.findall(r"https?://[^/\s]+:\d+", "\n".join(self.announced))
        return str(found)

    @property
    def errors(self) -> str:
        """Its standard error so far."""
        return self._errors.read_text()


@contextmanager
def started(
    home: Path,
    *arguments: str,
    until: str = "curl",
    program: Sequence[str] = OMLX,
    **variables: str,
) -> Iterator[Serving]:
    """Serve with what `home` holds, once a line with `until` is written; killed at the end."""
    home.mkdir(parents=True, exist_ok=True)
    errors = home / "stderr.txt"
    with errors.open("a") as log:
        process = subprocess.Popen(
            [*program, "serve", *arguments],
            env=environment(home, PYTHONUNBUFFERED="1", **variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert process.stdout is not None
    try:
        announced = list[str]()
        while until not in (announced or [""])[-1]:
            line = process.stdout.readline()
            assert line, errors.read_text()
            announced.append(line.strip())
        yield Serving(process, announced, errors)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@contextmanager
def serving(home: Path, *arguments: str, **variables: str) -> Iterator[Serving]:
    """Serve on a free port while the block runs; it must end well."""
    with started(home, *arguments, "--port", "0", "--no-bundled", **variables) as server:
        yield server
        server.process.terminate()
        server.process.communicate()
        assert server.process.returncode == 0, server.errors


@contextmanager
def ended_by(
    end: signal.Signals, home: Path, model: str, *arguments: str
) -> Iterator[tuple[httpx.Client, int]]:
    """A client of a server, and the server's process, which ends by a signal."""
    with (
        started(home, model, "--port", "0", *arguments, until="http") as server,
        httpx.Client(base_url=server.url, timeout=PATIENCE_S) as client,
    ):
        yield client, server.process.pid
        server.process.send_signal(end)
        server.process.communicate()
