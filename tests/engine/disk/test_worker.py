"""The thread of the disk: it ends in time, and does what it was told before."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from omlx.engine.disk.budget import DiskBudget
from omlx.engine.disk.chain import TokenChain
from omlx.engine.disk.folder import Fingerprint
from omlx.engine.disk.record import Record
from omlx.engine.disk.worker import DiskWorker
from tests.engine.disk.records import BLOCK, DENSE, open_store, record_id

FINGERPRINT = Fingerprint("org/model", "target", {})
PATIENCE_S = 30
WIDTH = 50
A = tuple(range(100, 148))
B = tuple(range(300, 348))


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


def write(root: Path, tokens: Sequence[int]) -> None:
    worker = open_worker(root)
    for one in rows(tokens):
        worker.write(one)
    assert ended(worker)


def stored(root: Path, tokens: Sequence[int]) -> int:
    """How many tokens of a prompt are on disk."""
    store = open_store(root / FINGERPRINT.name)
    length, _ = store.find(TokenChain((*tokens, 1), BLOCK), DENSE, len(tokens))
    store.close()
    return length


@pytest.fixture
def one_run_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block is a run, and nothing more is read until it was taken."""
    monkeypatch.setattr("omlx.engine.piece.RUN_BYTES", 1)
    monkeypatch.setattr("omlx.engine.disk.fetch.READ_AHEAD", 1)


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
