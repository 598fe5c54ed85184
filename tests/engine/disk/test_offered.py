"""What is written: each record's key is that of the tokens that its piece holds."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from omlx.engine.disk.folder import StoreState
from omlx.engine.disk.record import Record, RecordId, TokenChain
from omlx.engine.disk.tier import DiskThresholds, DiskTier
from omlx.engine.piece import Piece
from omlx.engine.prefix.reuse import PrefixReuse
from omlx.engine.step.plan import CacheOp, Evict, Save
from omlx.engine.step.row import Clock, Row
from omlx.engine.types import Request
from tests.engine.prefix.test_index import LAYOUTS, PLENTY

BLOCK = 4


class Written:
    """In place of the disk: proves each record, whose `spec` are the tokens that it holds."""

    has_room = True
    state = StoreState()

    def __init__(self) -> None:
        self.ids: set[RecordId] = set()

    def write(self, record: Record) -> None:
        id, chain = record.id, TokenChain(record.spec, BLOCK)
        assert len(record.spec) == id.stop
        assert (id.key, id.node) == (chain.key(id.stop), chain.node(id.stop))
        self.ids.add(id)

    def touch(self, chain: TokenChain) -> None:
        """A prefix that is there is in use."""

    def fetch(self, chain: TokenChain, least: int) -> None:
        """Nothing is read."""


class Server:
    """Rows over a prefix cache, one after another, without a model."""

    def __init__(self, layout: str, max_bytes: int) -> None:
        self.disk = Written()
        tier = DiskTier(self.disk, BLOCK, DiskThresholds(min_write_tokens=3 * BLOCK), lambda: None)
        tier.dump = self._dump
        self.reuse = PrefixReuse(LAYOUTS[layout], BLOCK, max_bytes, disk=tier)
        self.inside = 0
        """Hits with pieces that end behind them."""
        self._held: dict[int, tuple[int, ...]] = {}
        self._rows = 0

    def serve(self, prompt: Sequence[int], stable: int, output: Sequence[int], chunk: int) -> None:
        self._rows += 1
        request = Request(id=str(self._rows), tokens=tuple(prompt), stable=stable)
        end = len(prompt) + len(output)
        row = Row(self._rows, request, list(prompt), end, Clock(0.0))
        match = self.reuse.match(row)
        self._apply(row, self.reuse.restore(row, match))
        if match is not None:
            row.computed = match.length
            self.inside += any(piece.stop > match.length for piece in match.parts)
        while row.pending > 1:
            row.computed += self.reuse.chunk(row, chunk)
            self._apply(row, self.reuse.after_chunk(row, lambda: None))
        row.tokens += output
        row.computed = len(row.tokens) - 1
        self._apply(row, self.reuse.close(row, lambda: None))
        self.reuse.disk.pump(busy=False)

    def _apply(self, row: Row, ops: list[CacheOp]) -> None:
        for op in ops:
            if isinstance(op, Evict):
                for piece in op.pieces:
                    del self._held[piece]
            elif isinstance(op, Save):
                self._held |= {piece.id: tuple(row.tokens[: piece.stop]) for piece in op.pieces}

    def _dump(self, id: RecordId, piece: Piece) -> Record | None:
        return Record(id, self._held[piece.id], []) if piece.id in self._held else None


@pytest.mark.parametrize("max_bytes", [PLENTY, 1500])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_record_holds_the_tokens_of_its_key(layout: str, max_bytes: int) -> None:
    server, chance = Server(layout, max_bytes), random.Random(5)
    trunks = [[chance.randrange(3) for _ in range(40)] for _ in range(3)]
    for _ in range(400):
        prompt = chance.choice(trunks)[: chance.randrange(41)]
        prompt += [chance.randrange(3) for _ in range(chance.randrange(1, 20))]
        output = [chance.randrange(3) for _ in range(chance.randrange(1, 8))]
        stable = chance.randrange(len(prompt))
        server.serve(prompt, stable, output, chunk=chance.randrange(1, 30))
    assert len(server.disk.ids) > 100
    assert server.inside > 10
