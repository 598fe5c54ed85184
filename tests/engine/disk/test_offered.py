"""Pieces on disk: keys are those of their tokens, and what is read is kept itself."""

from __future__ import annotations

import random
from collections.abc import Sequence

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache, KVCache

from omlx.engine.device.payloads import Payload, Payloads, assemble
from omlx.engine.disk.record import Record, RecordId, Run, TokenChain
from omlx.engine.disk.serial import to_arrays
from omlx.engine.disk.tier import DiskThresholds, DiskTier
from omlx.engine.piece import Piece
from omlx.engine.prefix.reuse import PrefixReuse
from omlx.engine.step.plan import CacheOp, Evict, Save
from omlx.engine.step.row import Clock, Row
from omlx.engine.types import Request
from omlx.records import DiskStats
from tests.engine.prefix.test_index import LAYOUTS, PLENTY

BLOCK = 4


class Written:
    """In place of the disk: proves each record, whose `spec` are the tokens that it holds."""

    has_room = True
    state = DiskStats()
    off = None

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


ROWS = 64
SLACK_BYTES = 64 << 10
"""Of memory, beside arrays that are counted."""


def make_cache() -> list[KVCache]:
    return [KVCache()]


def test_what_was_read_is_saved_itself_and_not_copied_once_more() -> None:
    keys, values = mx.random.normal((2, 1, 1, ROWS, 8))
    read = Payload("rows", 0, ROWS, ((keys, values),))
    cache, piece = assemble(make_cache(), [read], ROWS, 2 * ROWS), Piece(7, "rows", 0, ROWS)
    kept = Payloads(make_cache)
    kept.keep(cache, [piece], [read])
    assert kept[7].payload is read
    cache[0].update_and_fetch(mx.ones((1, 1, 1, 8)), mx.ones((1, 1, 1, 8)))
    again = kept.build([7], ROWS, ROWS)
    assert mx.array_equal(again[0].keys[..., :ROWS, :], keys)


def test_pieces_share_what_holds_them_and_others_are_copied() -> None:
    keys = mx.random.normal((1, 2, ROWS, 8))
    parts = []
    for start, stop in ((0, 40), (40, ROWS)):
        parts.append(Payload("rows", start, stop, ((keys[..., start:stop, :],) * 2,)))
    cache = assemble(make_cache(), parts, ROWS, 2 * ROWS)
    kept = Payloads(make_cache)
    spans = {7: (0, 10), 8: (10, 40), 9: (30, 50), 10: (50, ROWS)}
    kept.keep(cache, [Piece(id, "rows", *span) for id, span in spans.items()], parts)
    assert [kept[id].payload is parts[0] for id in spans] == [True, True, False, False]
    assert kept[10].payload is parts[1]
    assert kept.nbytes == sum(stop - start for start, stop in spans.values()) * 2 * 2 * 8 * 4
    again = kept.build([7, 8], 35, ROWS)
    assert mx.array_equal(again[0].keys[..., :35, :], keys[..., :35, :])
    for id, (start, stop) in spans.items():
        saved = kept.to_record(
            RecordId("rows", start, stop, b"", b""), Piece(id, "rows", start, stop)
        )
        run = Run("rows", start, stop, saved.spec, saved.buffers)
        assert mx.array_equal(to_arrays(run)[0][0], keys[..., start:stop, :])


def test_a_state_is_shared_at_its_own_end_only() -> None:
    cache = [ArraysCache(1)]
    cache[0].cache = [mx.ones((1, 3))]
    read = Payload("state", 0, ROWS, ([mx.ones((1, 3))],))
    kept = Payloads(lambda: [ArraysCache(1)])
    kept.keep(cache, [Piece(1, "state", 32, ROWS), Piece(2, "state", 0, 32)], [read])
    assert kept[1].payload is read
    assert kept[2].payload is not read


def test_what_is_saved_together_is_copied_in_runs_and_read_back_alike() -> None:
    keys, values = mx.random.normal((2, 1, 2, 300, 1024))  # 16 KB a token: 256 of them are a run
    cache = make_cache()
    cache[0].update_and_fetch(keys, values)
    pieces = [Piece(1 + at, "rows", 64 * at, min(300, 64 * at + 64)) for at in range(5)]
    kept = Payloads(make_cache)
    kept.keep(cache, pieces)
    payloads = [kept[piece.id].payload for piece in pieces]
    assert [payload is payloads[0] for payload in payloads] == [True] * 4 + [False]
    kept.evict([5])
    again = kept.build([1, 2, 3, 4], 250, 300)
    assert mx.array_equal(again[0].values[..., :250, :], values[..., :250, :])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("heads", [1, 2])
def test_what_is_left_of_a_run_takes_at_most_twice_its_bytes(seed: int, heads: int) -> None:
    chance = random.Random(seed)
    shape = (1, heads, 16 * ROWS, 128 // heads)
    keys, values = mx.random.normal((2, *shape))
    mx.eval(keys, values)
    before, cache = mx.get_active_memory(), make_cache()
    cache[0].update_and_fetch(keys, values)
    pieces = [Piece(1 + i, "rows", ROWS * i, ROWS * (i + 1)) for i in range(16)]
    kept = Payloads(make_cache)
    kept.keep(cache, pieces)
    del cache
    assert kept[1].payload is kept[16].payload
    left = list(pieces)
    while left:
        gone = chance.sample(left, chance.randrange(1, len(left) + 1))
        left = [piece for piece in left if piece not in gone]
        kept.evict(piece.id for piece in gone)
        payloads = {id(kept[piece.id].payload): kept[piece.id].payload for piece in left}
        mx.eval([payload.arrays for payload in payloads.values()])
        held = sum(payload.nbytes for payload in payloads.values())
        assert kept.nbytes <= held <= 2 * kept.nbytes
        assert mx.get_active_memory() - before <= 2 * kept.nbytes + SLACK_BYTES
        for piece in left:
            saved = kept.to_record(RecordId("rows", piece.start, piece.stop, b"", b""), piece)
            run = Run("rows", piece.start, piece.stop, saved.spec, saved.buffers)
            assert mx.array_equal(to_arrays(run)[0][1], values[..., piece.start : piece.stop, :])
