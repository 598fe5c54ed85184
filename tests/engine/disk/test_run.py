"""Records that are joined: what they hold, in the order of the tokens."""

from __future__ import annotations

import random

import mlx.core as mx
import pytest

from omlx.engine.disk.record import Part, Place, Record, RecordId, decode, join
from omlx.engine.disk.serial import to_arrays, to_record
from omlx.engine.piece import RUN_BYTES, Piece, runs

DTYPES = (mx.float32, mx.bfloat16, mx.uint32, mx.bool_)
BLOCK = 8


def layers(rows: int, chance: random.Random) -> list:
    """A layer that has read nothing, one of a quantized cache, and others."""

    def rows_of(dtype: mx.Dtype) -> mx.array:
        heads, width = chance.choice((1, 2, 3)), chance.choice((4, 8))
        return mx.random.randint(0, 99, (1, heads, rows, width)).astype(dtype)

    shaped = [(rows_of(dtype), rows_of(mx.float32)) for dtype in DTYPES]
    return [None, *shaped, ((rows_of(mx.uint32), rows_of(mx.bfloat16)), rows_of(mx.int8))]


def cut(layer, start: int, stop: int):
    if layer is None:
        return None
    if isinstance(layer, tuple):
        return tuple(cut(array, start, stop) for array in layer)
    return mx.contiguous(layer[..., start:stop, :])


def equal(left, right) -> bool:
    if isinstance(left, tuple):
        return all(map(equal, left, right))
    if left is None:
        return right is None
    return left.dtype == right.dtype and bool(mx.array_equal(left, right))


def read_back(whole, start: int, stop: int) -> Record:
    """A record of these rows, as it comes from disk."""
    id = RecordId("rows", start, stop, b"", b"")
    record = to_record(id, whole, slice(start, stop))
    return decode(b"".join(map(bytes, record.encode())), id)


@pytest.mark.parametrize("seed", range(10))
def test_records_of_any_length_are_joined_into_what_they_were_cut_of(seed: int) -> None:
    chance = random.Random(seed)
    whole, at = layers(100, chance), 0
    read: list[tuple[Part, Record]] = []
    while at < 80:
        start = at - chance.randrange(min(at, 3) + 1)  # records may overlap
        stop = at + chance.choice((BLOCK, BLOCK, 3))
        record = read_back(whole, start, stop)
        read.append((Part(record.id, Place(1, 0, 0), at, stop - chance.randrange(2)), record))
        at = read[-1][0].stop
    (run,) = join(read)
    assert (run.start, run.stop) == (0, at)
    assert all(map(equal, to_arrays(run), [cut(layer, 0, at) for layer in whole]))


def test_a_whole_record_is_not_copied() -> None:
    record = read_back(layers(BLOCK, random.Random(1)), 0, BLOCK)
    (run,) = join([(Part(record.id, Place(1, 0, 0), 0, BLOCK), record)])
    assert all(buffer.obj is record.buffers[0].obj for buffer in run.buffers)


def test_records_with_arrays_of_other_shapes_are_not_joined() -> None:
    read = []
    for start, width in ((0, 4), (BLOCK, 4), (2 * BLOCK, 6)):
        record = read_back([mx.ones((1, 2, 3 * BLOCK, width))], start, start + BLOCK)
        read.append((Part(record.id, Place(1, 0, 0), start, start + BLOCK), record))
    assert [(run.start, run.stop) for run in join(read)] == [(0, 16), (16, 24)]


def test_runs_are_adjacent_pieces_of_a_kind_up_to_a_size() -> None:
    spans = [(0, 8), (8, 16), (16, 24), (32, 40), (40, 48)]
    pieces = [Piece(0, "rows", *span) for span in spans]
    pieces += [Piece(0, "window", 48, 56), Piece(0, "state", 56, 64), Piece(0, "state", 64, 72)]
    found = [len(run) for run in runs(pieces, lambda piece: RUN_BYTES // 2)]
    assert found == [2, 1, 2, 1, 1, 1]
    assert [len(run) for run in runs(pieces[:3], lambda piece: 2 * RUN_BYTES)] == [1, 1, 1]
    assert not list(runs([], lambda piece: 1))
