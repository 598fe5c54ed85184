"""`omlx serve MODEL --hosts 127.0.0.1,127.0.0.1`: processes, failures, mistakes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest

from tests.server.running import DRAFT, TARGET

LOCAL = "127.0.0.1,127.0.0.1"
PATIENCE_S = 90.0
QUESTION = {"role": "user", "content": "Repeat: the cat reads a table of numbers."}
LONG: dict[str, Any] = {
    "messages": [QUESTION],
    "max_tokens": 3000,
    "seed": 3,
    "temperature": 1.5,
    "ignore_eos": True,
    "stream": True,
}


class Group:
    """A running supervisor with its processes."""

    def __init__(self, process: subprocess.Popen[str], http: httpx.Client) -> None:
        self.process = process
        self.http = http

    def pids(self, command: str) -> list[int]:
        """The processes that the supervisor has started, by a word of their command lines."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                arguments = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:  # it has ended meanwhile
                continue
            if parent == self.process.pid and command.encode() in arguments:
                found.append(int(folder.name))
        return found

    def wait_for(self, holds: Callable[[], bool]) -> float:
        """Return the seconds until something holds."""
        start = time.monotonic()
        while not holds():
            assert time.monotonic() - start < PATIENCE_S
            time.sleep(0.05)  # another process is watched
        return time.monotonic() - start

    def healthy(self) -> bool:
        try:
            return self.http.get("/health").status_code == 200
        except httpx.TransportError:
            return False


@contextmanager
def group(home: Path, *flags: str, model: str = TARGET) -> Iterator[Group]:
    command = [sys.executable, "-m", "omlx", "serve", model, "--draft-model", DRAFT]
    process = subprocess.Popen(
        [*command, "--port", "0", "--hosts", LOCAL, *flags],
        env={**os.environ, "OMLX_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    lines: list[str] = []
    drain = Thread(target=process.stdout.read)
    try:
        for line in process.stdout:
            lines.append(line)
            if "http://" in line:
                break
        else:
            pytest.fail("".join(lines))
        drain.start()
        url = next(word for word in lines[-1].split() if word.startswith("http://"))
        with httpx.Client(base_url=url, timeout=PATIENCE_S) as http:
            yield Group(process, http)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE_S)
        finally:
            process.kill()
            if drain.ident is not None:
                drain.join()
            process.stdout.close()


def test_stages_stream_with_accepted_drafts_and_leave_nothing(tmp_path: Path) -> None:
    with group(tmp_path) as running:
        body = {"messages": [QUESTION], "max_tokens": 60, "seed": 1}
        staged = running.http.post("/v1/chat/completions", json=body).json()
        assert staged["timings"]["draft_n_accepted"] > 0
        assert all(running.pids(command) for command in ("serve", "stage"))
        plain = running.http.post("/v1/chat/completions", json={**body, "speculation": "off"})
        assert plain.json()["choices"] == staged["choices"]
        pids = [*running.pids("serve"), *running.pids("stage")]
        assert len(pids) == 2
    assert running.process.returncode == 0
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
def test_a_lost_stage_ends_open_requests_and_is_started_again(
    number: signal.Signals, tmp_path: Path
) -> None:
    with group(tmp_path, "--stage-timeout", "2") as running:
        (follower,) = running.pids("stage")
        lines: list[str] = []
        with running.http.stream("POST", "/v1/chat/completions", json=LONG) as answer:
            for line in answer.iter_lines():
                lines.append(line)
                if len(lines) == 20:
                    os.kill(follower, number)
        assert '"stage.lost"' in "".join(lines[-4:])
        restarted = running.wait_for(lambda: running.pids("stage") not in ([], [follower]))
        assert restarted < 20  # seconds: the pause, and the time to end what hangs
        running.wait_for(running.healthy)
        body = {"messages": [QUESTION], "max_tokens": 8}
        assert running.http.post("/v1/chat/completions", json=body).status_code == 200
        assert not Path(f"/proc/{follower}").exists()


def test_without_its_supervisor_a_group_ends(tmp_path: Path) -> None:
    with group(tmp_path) as running:
        pids = [*running.pids("serve"), *running.pids("stage")]
        running.process.kill()
        running.wait_for(lambda: not any(Path(f"/proc/{pid}/fd").exists() for pid in pids))


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (("--hosts", "127.0.0.1"), "two hosts"),
        (("--hosts", "nowhere.json"), "nowhere.json"),
        (("--hosts", LOCAL, "--stage-layers", "9,9"), "9,9"),
        (("--hosts", LOCAL, "--split", "tensor", "--stage-layers", "2,2"), "tensor"),
    ],
)
def test_mistakes_end_with_status_2(flags: tuple[str, ...], part: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "omlx", "serve", "omlx-demo/hybrid", "--port", "0", *flags],
        env={**os.environ, "OMLX_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 2, ended.stderr
    assert part in ended.stderr or "lfm2" in ended.stderr


def test_the_launcher_of_mlx_is_refused(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "omlx", "serve", TARGET, "--port", "0"],
        env={**os.environ, "OMLX_HOME": str(tmp_path), "MLX_RANK": "0"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 2
    assert "--hosts" in ended.stderr
