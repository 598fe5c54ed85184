"""`omlx serve MODEL --hosts` on loopback: real processes, and what becomes of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import httpx

from tests.processes import environment as variables
from tests.server.running import DRAFT, TARGET

ROOT = Path(__file__).resolve().parents[2]
SITE = Path(__file__).parent / "rank_site"
LOCAL = "127.0.0.1,127.0.0.1"
PATIENCE_S = 240.0
"""A group starts in 3 s on a quiet machine; in 90 where twenty processes share two cores."""
QUESTION = {"role": "user", "content": "Repeat: the cat reads a table of numbers."}


class Group:
    """A supervisor with its processes. `lines` is what all of them have printed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._http: httpx.Client | None = None
        self._reader = Thread(target=self._read)
        self._reader.start()

    @property
    def http(self) -> httpx.Client:
        """A client of the server, once it has been announced."""
        if self._http is None:
            self.wait_for(lambda: self.url is not None or self.process.poll() is not None)
            assert self.url is not None, "".join(self.lines)
            limits = httpx.Limits(max_keepalive_connections=0)  # servers end and others start
            self._http = httpx.Client(base_url=self.url, timeout=PATIENCE_S, limits=limits)
        return self._http

    @property
    def url(self) -> str | None:
        for line in [*self.lines]:
            for word in line.split():
                if word.startswith("http://"):
                    return word
        return None

    @property
    def announced(self) -> int:
        """How often a server has said that it accepts requests."""
        return sum(line.startswith("omlx ") and "http://" in line for line in [*self.lines])

    def pids(self, command: str) -> list[int]:
        """The processes that the supervisor has started, in their order, by a word of their command
        lines.
        """
        found = []
        for pid, parent in parents().items():
            if parent == self.process.pid and command.encode() in arguments(pid):
                found.append(pid)
        return found

    @property
    def family(self) -> set[int]:
        """All processes below the supervisor."""
        return descendants(self.process.pid)

    @property
    def listening(self) -> set[int]:
        """The ports at which any of the processes accepts connections."""
        inodes = set()
        for pid in {self.process.pid, *self.family}:
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                inodes.add(os.readlink(descriptor)[len("socket:[") : -1])
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        ours = [row for row in rows if row[3] == "0A" and row[9] in inodes]
        return {int(row[1].partition(":")[2], 16) for row in ours}

    def wait_for(self, holds: Callable[[], object], pause: float = 0.02) -> float:
        """Return the seconds until something holds; ask again after `pause` seconds."""
        start = time.monotonic()
        while not holds():
            assert time.monotonic() - start < PATIENCE_S, "".join(self.lines)
            time.sleep(pause)  # another process is watched
        return time.monotonic() - start

    def healthy(self) -> bool:
        try:
            return self.http.get("/health").status_code == 200
        except httpx.TransportError:
            return False

    def close(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
            self._reader.join()
            if self._http is not None:
                self._http.close()
            if self.process.stdout is not None:
                self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)


@contextmanager
def group(
    home: Path,
    *flags: str,
    model: str = TARGET,
    hosts: str = LOCAL,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Group]:
    """A group that is starting; all its processes have ended afterwards."""
    command = [sys.executable, "-m", "omlx", "serve", model, "--draft-model", DRAFT]
    process = subprocess.Popen(
        [*command, "--port", "0", "--hosts", hosts, *flags],
        env=variables(home, OMLX_HOME=str(home), **(environment or {})),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    running = Group(process)
    try:
        yield running
    except BaseException:
        process.kill()  # nothing is worth waiting for
        raise
    finally:
        family = running.family
        running.close()
        wait_until_gone(family)


def changed_ranks(changes: Mapping[str, Any]) -> dict[str, str]:
    """The environment in which `tests.cli.changed_rank` changes ranks."""
    path = f"{SITE}{os.pathsep}{ROOT}"
    return {"PYTHONPATH": path, "OMLX_TEST_RANKS": json.dumps(changes)}


def parents() -> dict[int, int]:
    """The parent of every process that runs, in the order of their starts, whatever their numbers;
    those that have ended and wait for it do not.
    """
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent, *more = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        if state not in "ZX":
            started = int(more[17])
            found.append((started, int(folder.name), int(parent)))
    return {pid: parent for _, pid, parent in sorted(found)}


def arguments(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:  # it has ended meanwhile
        return []


def descendants(pid: int) -> set[int]:
    by_child, found, fresh = parents(), set[int](), {pid}
    while fresh:
        fresh = {child for child, parent in by_child.items() if parent in fresh}
        found |= fresh
    return found


def wait_until_gone(pids: set[int]) -> float:
    """Return the seconds until all have ended."""
    start = time.monotonic()
    while left := pids & set(parents()):
        assert time.monotonic() - start < PATIENCE_S, f"orphans: {left}"
        time.sleep(0.02)  # these are no children of this process
    return time.monotonic() - start


def chat(**values: Any) -> dict[str, Any]:
    return {"messages": [QUESTION], "max_tokens": 8, **values}
