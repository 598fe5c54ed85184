"""The thread of the disk: it ends in time, and writes what waits before."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from omlx.engine.disk.folder import DiskBudget, Fingerprint
from omlx.engine.disk.record import Record, TokenChain
from omlx.engine.disk.store import FILE
from omlx.engine.disk.tier import DiskCache
from omlx.engine.disk.worker import DiskWorker, Fetch
from tests.engine.disk.records import BLOCK, DENSE, open_store, record_id
from tests.lanes import few

FINGERPRINT = Fingerprint("org/model", "target", {})
PATIENCE_S = 30
WIDTH = 50
A = tuple(range(100, 148))
B = tuple(range(300, 348))
END = tuple(range(900, 908))
HARD = (252, 390, 413, 457, 465, 507, 841)
"""Seeds of flips that SQLite does not notice."""
MANY = [tuple(range(1000 * i, 1000 * i + 48)) for i in range(2, 42)]


def rows(tokens: Sequence[int]) -> list[Record]:
    """The rows of a prefix of whole blocks, which can be joined."""
    spec = {"uint8": [1, BLOCK, WIDTH]}
    starts = range(0, len(tokens), BLOCK)
    ids = [record_id(tokens[: start + BLOCK], "rows", start) for start in starts]
    return [Record(id, spec, [bytes(BLOCK * WIDTH)]) for id in ids]


def open_worker(root: Path, wake: Callable[[], None] = lambda: None) -> DiskWorker:
    return DiskWorker(root, FINGERPRINT, DENSE, BLOCK, DiskBudget(1 << 20), wake)


def ended(worker: DiskWorker) -> bool:
    """Whether a worker ends once it is closed."""
    worker.close()
    worker.join(PATIENCE_S)
    return not worker._thread.is_alive()


def settle(worker: DiskWorker) -> None:
    """Wait until all that was handed over is written or dropped."""
    with worker._changed:
        assert worker._changed.wait_for(lambda: not worker._waiting, PATIENCE_S)


def write(root: Path, *prefixes: Sequence[int]) -> None:
    worker = open_worker(root)
    for tokens in prefixes:
        for one in rows(tokens):
            worker.write(one)
    assert ended(worker)
    assert worker.state.off is None


def read(root: Path, *prefixes: Sequence[int]) -> list[int | None]:
    """Read prefixes by one worker; return the lengths of what they restore."""
    worker = open_worker(root)
    fetches = [worker.fetch(TokenChain((*tokens, 1), BLOCK), 0) for tokens in prefixes]
    worker.write(rows(END)[0])  # is not given up, and comes last
    settle(worker)
    assert worker.state.off is None
    assert ended(worker)
    return [fetch.length for fetch in fetches]


def stored(root: Path, tokens: Sequence[int]) -> int:
    """How many tokens of a prompt are on disk."""
    store = open_store(root / FINGERPRINT.name)
    length, _ = store.find(TokenChain((*tokens, 1), BLOCK), DENSE, len(tokens))
    store.close()
    return length


def execute(root: Path, *statements: tuple[object, ...]) -> list[tuple[object, ...]]:
    """Execute SQL behind the back of all workers; return the rows of the last statement."""
    db = sqlite3.connect(root / FINGERPRINT.name / FILE)
    with closing(db), db:
        return [db.execute(*statement).fetchall() for statement in statements][-1]


@pytest.fixture
def one_run_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block is a run, and nothing more is read until it was taken."""
    monkeypatch.setattr("omlx.engine.piece.RUN_BYTES", 1)
    monkeypatch.setattr("omlx.engine.disk.worker.READ_AHEAD", 1)


@pytest.mark.usefixtures("one_run_ahead")
def test_the_end_gives_up_what_is_read_and_writes_what_waits(tmp_path: Path) -> None:
    write(tmp_path, A)
    woken = threading.Event()
    worker = open_worker(tmp_path, woken.set)
    chain = TokenChain((*A, 1), BLOCK)
    first, second = worker.fetch(chain, 0), worker.fetch(chain, 0)
    assert woken.wait(PATIENCE_S)  # a run was read, and is never taken
    for one in rows(B):
        worker.write(one)
    assert ended(worker)
    late = worker.fetch(chain, 0)
    for fetch in (first, second, late):
        assert fetch.ended
        assert fetch.length == 0
    assert stored(tmp_path, B) == len(B)


def test_what_is_given_up_restores_nothing_though_all_was_read(tmp_path: Path) -> None:
    write(tmp_path, A)
    woken = threading.Event()
    worker = open_worker(tmp_path, woken.set)
    fetch = worker.fetch(TokenChain((*A, 1), BLOCK), 0)
    while fetch.length is None:
        assert woken.wait(PATIENCE_S)
        woken.clear()
    assert fetch.length == len(A)
    assert ended(worker)
    fetch.cancel()
    assert fetch.take(1 << 20) == []
    assert fetch.length == 0


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with many prefixes, whose table has many pages."""
    root = tmp_path_factory.mktemp("filled")
    write(root, *MANY)
    return root


@pytest.mark.parametrize("byte", [0x00, 0x55, 0xFF])
def test_a_damaged_page_of_the_table_costs_what_is_stored(
    byte: int, filled: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Any page, noticed when it is opened, read or written."""
    begun_again = 0
    pages = (filled / FINGERPRINT.name / FILE).stat().st_size // 4096
    assert pages > 10
    for page in range(pages):
        root = tmp_path / str(page)
        shutil.copytree(filled, root)
        table = root / FINGERPRINT.name / FILE
        content = bytearray(table.read_bytes())
        content[4096 * page : 4096 * page + 4096] = bytes([byte]) * 4096
        table.write_bytes(content)
        caplog.clear()
        read(root, *MANY)
        write(root, *MANY[::8], A, A)  # the damage may be noticed in between
        warnings = [record.message for record in caplog.records]
        assert warnings in ([], ["the index of prefixes on disk is damaged: begun again"])
        begun_again += len(warnings)
        assert stored(root, A) == len(A)
    assert begun_again > pages // 2


@pytest.mark.parametrize("seed", few([*range(40), *HARD], *HARD, every=5))
def test_flipped_bits_in_the_table_do_not_switch_the_disk_off(
    seed: int, filled: Path, tmp_path: Path
) -> None:
    chance, root = random.Random(seed), tmp_path / "root"
    shutil.copytree(filled, root)
    table = root / FINGERPRINT.name / FILE
    content = bytearray(table.read_bytes())
    for _ in range(20):
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    table.write_bytes(content)
    lengths = read(root, *MANY)
    assert all(length in range(49) for length in lengths)
    write(root, *MANY, A)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("nbytes", 1 << 60),
        ("nbytes", -5),
        ("nbytes", 100),
        ("nbytes", "many"),
        ("offset", 1 << 62),
        ("offset", -1),
        ("segment", 99),
        ("segment", b"first"),
        ("start", 17),
        ("start", "x"),
        ("stop", 25),
        ("stop", "x"),
        ("node", b"x"),
        ("kind", "column"),
        ("kind", 5),
    ],
)
def test_a_row_that_is_wrong_costs_its_record(column: str, value: object, tmp_path: Path) -> None:
    write(tmp_path, A, B)
    change = f"update records set {column} = ? where key = ?"
    execute(tmp_path, (change, (value, rows(A)[2].id.key)))
    assert read(tmp_path, A, B) == [16, len(B)]
    write(tmp_path, A)
    assert read(tmp_path, A, B) == [len(A), len(B)]


@pytest.mark.parametrize("wrong", ["x'ff'", "cast(x'ff' as text)"])
def test_text_that_is_none_costs_its_record(wrong: str, tmp_path: Path) -> None:
    write(tmp_path, A)
    change = f"update records set kind = {wrong} where key = ?"
    execute(tmp_path, (change, (rows(A)[2].id.key,)), (f"update days set written = {wrong}",))
    assert read(tmp_path, A) == [16]
    write(tmp_path, A)
    assert read(tmp_path, A) == [len(A)]


def test_a_folder_is_opened_again_without_waiting_for_what_is_still_written(tmp_path: Path) -> None:
    disks = DiskCache(tmp_path, DiskBudget(1 << 20), lambda: None)
    with (tmp_path / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # the first worker cannot open its folder
        first = disks.open(FINGERPRINT, DENSE, BLOCK)
        for one in rows(A):
            first.worker.write(one)
        first.close()
        opening = threading.Thread(target=disks.open, args=(FINGERPRINT, DENSE, BLOCK), daemon=True)
        opening.start()
        opening.join(PATIENCE_S)
        assert not opening.is_alive()
        assert first.worker._thread.is_alive()
        (second,) = disks._tiers
        fetch = second.worker.fetch(TokenChain((*A, 1), BLOCK), 0)
    second.worker.write(rows(END)[0])  # comes behind what is read
    settle(second.worker)
    assert fetch.length == len(A)
    second.close()
    disks.join()
    assert ended(second.worker)
    assert stored(tmp_path, A) == len(A)


@pytest.fixture
def locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DiskWorker]:
    """A worker whose folder, with prefix A, another process uses, and that has been cleared."""
    monkeypatch.setattr("omlx.engine.disk.folder.RETRY_S", 3600.0)
    write(tmp_path, A)
    lock = os.open(tmp_path / FINGERPRINT.name / "lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    worker = open_worker(tmp_path)
    worker.clear()
    worker.write(rows(END)[0])  # is dropped behind it
    settle(worker)
    assert worker.state.off is not None
    os.close(lock)
    yield worker
    assert ended(worker)


def test_what_is_cleared_while_the_disk_is_off_goes_once_it_is_on(locked: DiskWorker) -> None:
    locked._access._retry_at = 0.0
    fetch = locked.fetch(TokenChain((*A, 1), BLOCK), 0)
    locked.write(rows(B)[0])
    settle(locked)
    assert fetch.length == 0
    assert locked.state.off is None
    assert locked.state.pieces == 1


def test_what_is_cleared_while_the_disk_is_off_goes_at_the_end(
    locked: DiskWorker, tmp_path: Path
) -> None:
    assert ended(locked)
    assert stored(tmp_path, A) == 0


def test_the_engine_is_woken_before_the_use_is_noted(tmp_path: Path) -> None:
    """To note it takes as long as a write."""
    write(tmp_path, A)
    used: list[float] = []

    def last_use() -> float:
        """Of the file that is read."""
        ((oldest,),) = execute(tmp_path, ("select min(used) from segments",))
        return float(oldest)

    execute(tmp_path, ("update segments set used = 1",))
    reading: list[Fetch] = []
    read = threading.Event()

    def wake() -> None:
        if read.wait(PATIENCE_S) and reading[0].length is not None:
            used.append(last_use())

    worker = open_worker(tmp_path, wake)
    reading.append(worker.fetch(TokenChain((*A, 1), BLOCK), 0))
    read.set()
    worker.write(rows(END)[0])  # comes behind all of it
    settle(worker)
    assert reading[0].length == len(A)
    assert ended(worker)
    assert used[0] == 1
    assert last_use() > 1
