"""`python -m tests.engine.disk.killed FOLDER TIMES SEED`: a writer that is killed again and again.

Each time a child writes, rotates, evicts and clears until SIGKILL; then this process opens what is
left, and proves that every record there is the one that was written, and that space is bounded.
Every second child lives until it has written at least a record, however slow the machine.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Final, NoReturn

from omlx.engine.disk.store import DiskStore
from tests.engine.disk.records import BLOCK, prefix, restored

SEGMENT_BYTES: Final = 3000
LIMIT: Final = 20_000
CONVERSATIONS: Final = [tuple(range(1000 * i, 1000 * i + 64)) for i in range(12)]


def write(folder: Path, seed: int, written: int) -> NoReturn:
    """Write to a descriptor, `written`, behind each record."""
    chance = random.Random(seed)
    store = DiskStore(folder, BLOCK, SEGMENT_BYTES)
    while True:
        tokens = chance.choice(CONVERSATIONS)[: chance.randrange(8, 65)]
        for record in prefix(tokens, chance.choice((40, 400))):
            if not store.has(record.id):
                store.shrink(LIMIT - record.nbytes - 200)
                store.put(record)
                os.write(written, b".")
        restored(store, tokens)
        if chance.random() < 0.02:
            store.clear()
        if chance.random() < 0.1:
            store.close()
            store = DiskStore(folder, BLOCK, SEGMENT_BYTES)


def main(folder: Path, times: int, seed: int) -> None:
    chance, found = random.Random(seed), 0
    for i in range(times):
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            write(folder, seed + i, writer)
        os.close(writer)
        if i % 2:
            os.read(reader, 1)
        time.sleep(chance.uniform(0.0, 0.03))  # the moment of death is what is tried
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)
        store = DiskStore(folder, BLOCK, SEGMENT_BYTES)
        found += sum(restored(store, (*tokens, 1)) for tokens in CONVERSATIONS)
        assert store.damaged == 0, "the table has a record that was not written"
        sizes = [path.stat().st_size for path in folder.glob("*.records")]
        assert sum(sizes) <= LIMIT + 2 * SEGMENT_BYTES, sizes
        store.close()
    sys.stdout.write(f"{found}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
