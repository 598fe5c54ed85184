"""`omlx serve` as a process of its own, up and asked over its socket."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.processes import environment


@dataclass(frozen=True)
class Serving:
    """`announced` is what it wrote once it took requests, line by line."""

    url: str
    announced: list[str]
    pid: int


@contextmanager
def serving(home: Path, *arguments: str, **variables: str) -> Iterator[Serving]:
    """Serve on a free port while the block runs, with what `home` holds; it must end well."""
    errors = home / "stderr.txt"
    with errors.open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "omlx", "serve", *arguments, "--port", "0", "--no-bundled"],
            env=environment(home, **variables),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert process.stdout is not None
        announced = []
        for line in process.stdout:
            announced.append(line.strip())
            if "curl" in line:
                break
        assert announced, errors.read_text()
        yield Serving(announced[0].split()[-1], announced, process.pid)
    finally:
        process.terminate()
        process.communicate()
    assert process.returncode == 0, errors.read_text()
