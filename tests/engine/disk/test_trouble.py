"""A disk that is full, missing or in use, and a process that is killed: the same tokens."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from omlx.engine.disk.folder import DiskBudget
from omlx.records import DiskStats
from tests.engine.disk.restarts import DiskBench, started
from tests.engine.harness import prompt, request
from tests.lanes import few

FAMILY = "llama"


def ask(bench: DiskBench, *salts: int) -> None:
    """Ask prompts of 200 tokens, each twice; prove what is said."""
    for salt in salts:
        for _ in range(2):
            one = request(f"{len(bench.finished)}", prompt(200, salt), max_tokens=8)
            bench.run(one).proven(FAMILY, one)


def stats(bench: DiskBench) -> DiskStats:
    return bench.loop.prefix_stats.disk


def forget(bench: DiskBench) -> None:
    """Evict what is in memory."""
    bench.loop.scheduler.ops.next += bench.loop.scheduler.prefix.shrink(0)
    while bench.loop.has_work:
        bench.step()


@contextmanager
def files_of_at_most(nbytes: int) -> Iterator[None]:
    """No file of this process grows beyond so many bytes: like a full disk, without root."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with files_of_at_most(60_000), started(FAMILY, tmp_path) as bench:
        ask(bench, 1, 2, 3, 4)
    assert stats(bench).off.code == "prefix.disk.off.failed"
    assert len([record for record in caplog.records if record.name == "omlx.prefix"]) == 1
    with started(FAMILY, tmp_path) as bench:  # what fitted is whole
        ask(bench, 1, 2, 3, 4)
        assert stats(bench).damaged == 0


def test_a_folder_that_is_removed_while_it_is_used(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    with started(FAMILY, root) as bench:
        ask(bench, 1)
        bench.written()  # else a file may be made while the folder is deleted
        while root.exists():
            shutil.rmtree(root, ignore_errors=True)  # SQLite removes files of its own meanwhile
        forget(bench)
        ask(bench, 2, 1)
    with started(FAMILY, root) as bench:
        ask(bench, 1)
        assert stats(bench).hits == 1
        assert stats(bench).off is None


def test_a_folder_that_cannot_be_made(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    with started(FAMILY, tmp_path / "file" / "cache") as bench:
        ask(bench, 1)
    assert stats(bench).off.code == "prefix.disk.off.failed"
    assert len([record for record in caplog.records if record.name == "omlx.prefix"]) == 1


def test_a_folder_that_another_server_uses(tmp_path: Path) -> None:
    with started(FAMILY, tmp_path) as first:
        ask(first, 1)
        first.written()
        with started(FAMILY, tmp_path) as second:
            ask(second, 1, 2)
        assert stats(second).off.code == "prefix.disk.off.locked"
        assert stats(first).off is None
        forget(first)
        ask(first, 1)
        assert stats(first).hits == 1


def test_the_space_is_bounded_and_so_is_what_a_day_writes(tmp_path: Path) -> None:
    budget = DiskBudget(200_000)
    with started(FAMILY, tmp_path, budget=budget) as bench:
        ask(bench, *range(12))
    written = stats(bench)
    assert 0 < written.nbytes <= written.max_bytes == 200_000
    assert written.written_today <= 3 * 200_000 + 10_000
    assert written.off.code == "prefix.disk.daily"


def test_nothing_is_cached_within_a_budget_of_nothing(tmp_path: Path) -> None:
    with started(FAMILY, tmp_path, budget=DiskBudget(0)) as bench:
        ask(bench, 1)
    assert stats(bench).pieces == 0


def test_cleared_prefixes_do_not_come_back(tmp_path: Path) -> None:
    with started(FAMILY, tmp_path) as bench:
        ask(bench, 1)
        bench.loop.clear_prefixes()
        bench.run(request("b", prompt(200, 1), max_tokens=1))
        assert bench.stats("b").cached_n == 0


@pytest.mark.parametrize("times", few((20, 1000), 20))
def test_a_writer_that_is_killed(times: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.engine.disk.killed", str(tmp_path), str(times), "7"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) > 0, "no token was restored after any kill"
