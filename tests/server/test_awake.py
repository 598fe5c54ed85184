"""A Mac stays awake while requests are open: the child, its end, and what may go wrong.

`caffeinate` is a real program here, found on PATH: it reports its arguments and waits for a signal.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest

from omlx.cli.serve.command import in_use
from omlx.power import LINGER_S, RETRY_S, Awake
from tests.server.running import PATIENCE_S, TARGET, Running, omlx

PROGRAM = """\
#!{python}
import os, signal, sys
{setup}
with open({report!r}, "w") as report:
    report.write(" ".join([str(os.getpid()), *sys.argv[1:]]))
{then}
"""


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Program:
    """The fake `caffeinate` in its folder. Its report is a pipe, so that tests wait for it."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "caffeinate"
        self._report = folder / "report"
        os.mkfifo(self._report)
        self.write()

    def write(self, setup: str = "", then: str = "signal.pause()") -> None:
        text = PROGRAM.format(
            python=sys.executable, report=str(self._report), setup=setup, then=then
        )
        self._file.write_text(text)
        self._file.chmod(0o755)

    def remove(self) -> None:
        self._file.unlink()

    def started(self) -> tuple[int, list[str]]:
        """Wait until it runs. Return its process id and arguments."""
        pid, *arguments = self._report.read_text().split()
        return int(pid), arguments


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    monkeypatch.setenv("PATH", str(tmp_path))
    return Program(tmp_path)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def awake(clock: Clock) -> Iterator[Awake]:
    awake = Awake(lambda: True, platform="darwin", clock=clock)
    yield awake
    awake.close()


def is_gone(pid: int) -> bool:
    """Whether no process has this id: none that runs, and no zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_it_runs_from_the_first_request_until_shortly_after_the_last(
    program: Program, clock: Clock, awake: Awake
) -> None:
    awake.update(busy=False)
    awake.update(busy=True)
    pid, arguments = program.started()
    assert arguments == ["-i", "-w", str(os.getpid())]
    awake.update(busy=True)
    clock.now += LINGER_S - 1
    awake.update(busy=False)
    assert not is_gone(pid)
    awake.update(busy=True)  # the next request of a conversation
    clock.now += LINGER_S - 1
    awake.update(busy=False)
    assert not is_gone(pid)
    clock.now += 1
    awake.update(busy=False)
    assert is_gone(pid)
    awake.update(busy=True)
    again, _ = program.started()
    assert again != pid


def test_closing_ends_it_for_good(program: Program, awake: Awake) -> None:
    awake.update(busy=True)
    pid, _ = program.started()
    awake.close()
    assert is_gone(pid)
    program.remove()
    awake.update(busy=True)  # would fail, and be logged


def test_one_that_ignores_signals_is_killed(
    program: Program, awake: Awake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omlx.power._END_S", 0.01)
    program.write(setup="signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    awake.update(busy=True)
    pid, _ = program.started()
    awake.close()
    assert is_gone(pid)


def test_where_it_is_missing_requests_go_on_and_the_log_says_it_once(
    program: Program, clock: Clock, awake: Awake, caplog: pytest.LogCaptureFixture
) -> None:
    program.remove()
    with caplog.at_level(logging.WARNING, "omlx"):
        for _ in range(3):
            awake.update(busy=True)
            clock.now += RETRY_S
    (record,) = caplog.records
    assert "sleep" in record.getMessage()
    assert record.__dict__["fields"]["detail"] == "No such file or directory"


def test_one_that_ended_is_reaped_and_started_again_after_a_while(
    program: Program, clock: Clock, awake: Awake, caplog: pytest.LogCaptureFixture
) -> None:
    program.write(then="sys.exit(7)")
    awake.update(busy=True)
    pid, _ = program.started()
    while not caplog.records:
        awake.update(busy=True)
    program.write()
    assert is_gone(pid)
    assert caplog.records[-1].__dict__["fields"]["detail"] == "status 7"
    awake.update(busy=True)
    clock.now += RETRY_S
    awake.update(busy=True)
    again, _ = program.started()
    assert again != pid


@pytest.mark.parametrize(
    ("wanted", "platform"), [(False, "darwin"), (True, "linux")], ids=["setting", "linux"]
)
def test_it_never_starts_where_it_is_off_or_of_no_use(
    wanted: bool, platform: str, program: Program, caplog: pytest.LogCaptureFixture
) -> None:
    program.remove()  # an attempt would be logged
    awake = Awake(lambda: wanted, platform=platform)
    awake.update(busy=True)
    awake.close()
    assert not caplog.records


def test_the_setting_ends_it_at_once(program: Program, clock: Clock) -> None:
    wanted = [True]
    awake = Awake(lambda: wanted[0], platform="darwin", clock=clock)
    awake.update(busy=True)
    pid, _ = program.started()
    wanted[0] = False
    awake.update(busy=True)
    assert is_gone(pid)
    awake.close()


def test_a_server_follows_its_requests(
    program: Program, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omlx.power.CHECK_S", 0.001)
    with omlx() as running:
        assert not in_use(running.pool)
        pid = asyncio.run(follow(running, program, clock))
    assert is_gone(pid)


async def follow(running: Running, program: Program, clock: Clock) -> int:
    """Ask for an endless answer, and leave it once the child runs; wait until it has ended."""
    awake = Awake(lambda: True, platform="darwin", clock=clock)
    task = asyncio.create_task(awake.run(partial(in_use, running.pool)))
    body = {"model": TARGET, "prompt": "def", "stream": True, "max_tokens": 3000}
    address = f"{running.url}/v1/completions"
    async with (
        httpx.AsyncClient(timeout=PATIENCE_S) as client,
        client.stream("POST", address, json=body) as answer,
    ):
        assert answer.status_code == 200
        pid, _ = await asyncio.to_thread(program.started)
    await until(lambda: not in_use(running.pool))
    assert not is_gone(pid)

    def gone_later() -> bool:
        clock.now += LINGER_S  # at each look: work ahead of the next turn may begin meanwhile
        return is_gone(pid)

    await until(gone_later)
    task.cancel()
    await asyncio.wait([task])
    return pid


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)
