"""Records without a model: `piece(tokens, kind, start)` and a folder to put them in."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from omlx.engine.disk.record import Record, RecordId, TokenChain
from omlx.engine.disk.store import DiskStore
from omlx.engine.piece import Kind, Layout

BLOCK = 8
DENSE = Layout(row_bytes=4)


def record_id(tokens: Sequence[int], kind: Kind, start: int) -> RecordId:
    """The piece of a kind of layer for `tokens` from `start` on."""
    chain, stop = TokenChain(tokens, BLOCK), len(tokens)
    return RecordId(kind, start, stop, chain.key(stop), chain.node(stop))


def record(tokens: Sequence[int], kind: Kind, start: int, nbytes: int = 400) -> Record:
    """A piece whose content follows from what it is a piece of."""
    chance = random.Random(repr((tuple(tokens), kind, start)))
    return Record(record_id(tokens, kind, start), {"uint8": [nbytes]}, [chance.randbytes(nbytes)])


def prefix(tokens: Sequence[int], nbytes: int = 400) -> list[Record]:
    """All rows of a prefix, block by block."""
    starts = range(0, len(tokens), BLOCK)
    return [record(tokens[: start + BLOCK], "rows", start, nbytes) for start in starts]


def restored(store: DiskStore, tokens: Sequence[int]) -> int:
    """How many tokens of a prompt can be restored; proves that each record is what was written."""
    length, parts = store.find(TokenChain(tokens, BLOCK), DENSE, len(tokens) - 1)
    for part in parts:
        read = store.read(part)
        if read is None:
            return part.start
        expected = record(tokens[: part.id.stop], part.id.kind, part.id.start, read.nbytes)
        assert bytes(read.buffers[0]) == bytes(expected.buffers[0]), part
    return length


def open_store(folder: Path, segment_bytes: int = 4000) -> DiskStore:
    return DiskStore(folder, BLOCK, segment_bytes)
