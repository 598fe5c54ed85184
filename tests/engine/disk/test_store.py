"""Records on disk: found, read, dropped when damaged, evicted; nothing is ever read that was not
written."""

from __future__ import annotations

import random
from pathlib import Path

import mlx.core as mx
import pytest

from omlx.engine.disk.folder import CacheFolder, Fingerprint
from omlx.engine.disk.record import (
    Damaged,
    Part,
    Place,
    Record,
    RecordId,
    TokenChain,
    decode,
    join,
    longest_cover,
)
from omlx.engine.disk.serial import to_arrays, to_record
from omlx.engine.disk.store import FILE, DiskStore
from omlx.engine.piece import RUN_BYTES, Layout, Piece, runs
from tests.engine.disk.records import BLOCK, DENSE, open_store, prefix, record, restored

A = tuple(range(100, 144))
B = (*A[:20], *range(300, 330))
IMAGE = (1, 2, -(2**62) - 1, -2, 3, *range(40, 50))


def filled(folder: Path, *records: Record) -> DiskStore:
    store = open_store(folder)
    for one in records:
        store.put(one)
    return store


def test_what_was_written_is_found_after_it_was_opened_again(tmp_path: Path) -> None:
    filled(tmp_path, *prefix(A), *prefix(B), *prefix(IMAGE)).close()
    store = open_store(tmp_path)
    assert store.records == 6 + 5 + 2  # two blocks are shared
    assert restored(store, (*A, 1)) == len(A)
    assert restored(store, (*B, 1)) == len(B)
    assert restored(store, (*IMAGE, 1)) == len(IMAGE)
    assert restored(store, A) == len(A) - 1  # one token is left to compute
    assert restored(store, (*A[:30], 7, 7)) == 24
    assert restored(store, (7, *A)) == 0


def test_no_key_shows_a_token() -> None:
    keys = [TokenChain(tokens, BLOCK).key(len(tokens)) for tokens in (A, B, IMAGE, A[:8], A[:9])]
    assert len(set(keys)) == 5
    assert all(len(key) == 16 for key in keys)


def test_no_key_goes_beyond_the_tokens() -> None:
    chain = TokenChain(A[:20], BLOCK)
    for stop in (-1, 0, 21, 24, 25):
        for key in (chain.key, chain.node):
            with pytest.raises(ValueError, match="of 20"):
                key(stop)
    assert chain.key(20) == TokenChain(A, BLOCK).key(20)


def test_a_flipped_bit_or_a_torn_end_is_noticed() -> None:
    """1,000 records, each with another bit flipped, at any place of head, header or body."""
    chance = random.Random(3)
    for i in range(1000):
        one = record((i, 2, 3), "rows", 0, 50)
        id, whole = one.id, b"".join(map(bytes, one.encode()))
        assert decode(whole, id).id == id
        flipped = bytearray(whole)
        at = chance.randrange(8 * len(whole))
        flipped[at // 8] ^= 1 << at % 8
        with pytest.raises(Damaged):
            decode(bytes(flipped), id)
        with pytest.raises(Damaged):
            decode(whole[: chance.randrange(len(whole))], id)


def test_another_record_at_the_place_is_not_taken_for_it(tmp_path: Path) -> None:
    first, second = prefix(A)[:2]
    with pytest.raises(Damaged):
        decode(b"".join(map(bytes, first.encode())), second.id)


def test_damage_on_disk_costs_what_is_behind_it_and_is_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = filled(tmp_path, *prefix(A))
    (segment,) = tmp_path.glob("*.records")
    content = bytearray(segment.read_bytes())
    for middle in (1300, 2300):
        content[middle] ^= 4
    segment.write_bytes(content)
    assert [restored(store, (*A, 1)) for _ in range(3)] == [16, 16, 16]
    assert store.damaged == 1
    for one in prefix(A):
        if not store.has(one.id):
            store.put(one)
    assert restored(store, (*A, 1)) == 32
    assert store.damaged == 2
    assert len(caplog.records) == 1


def test_the_least_recently_used_files_are_evicted(tmp_path: Path) -> None:
    store = filled(tmp_path, *prefix(A, 1500), *prefix(B, 1500))
    _, parts = store.find(TokenChain((*A, 1), BLOCK), DENSE, len(A))
    store.touch(parts)
    store.shrink(store.nbytes - 5000)
    assert restored(store, (*A, 1)) == len(A)
    assert restored(store, (*B, 1)) < len(B)
    assert sum(path.stat().st_size for path in tmp_path.glob("*.records")) == store.nbytes
    store.clear()
    assert (store.nbytes, store.records, restored(store, (*A, 1))) == (0, 0, 0)


def test_files_and_entries_that_lost_each_other_are_deleted(tmp_path: Path) -> None:
    filled(tmp_path, *prefix(A, 1500)).close()
    (tmp_path / "00000001.records").unlink()
    (tmp_path / "00000099.records").write_bytes(b"never entered")
    store = open_store(tmp_path)
    assert not (tmp_path / "00000099.records").exists()
    assert 0 < store.records < 6
    assert restored(store, (*A, 1)) == 0


def test_a_damaged_table_is_begun_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    filled(tmp_path, prefix(A)[0]).close()
    (tmp_path / FILE).write_bytes(b"not a table" * 1000)
    store = open_store(tmp_path)
    assert (store.records, store.nbytes) == (0, 0)
    store.put(prefix(A)[0])
    assert restored(store, A) == 8
    assert len(caplog.records) == 1


@pytest.mark.parametrize("seed", range(40))
def test_the_longest_cover_is_what_trying_everything_finds(seed: int) -> None:
    chance = random.Random(seed)
    layout = Layout(
        row_bytes=4,
        window_bytes=4,
        window=chance.choice((None, 6, 20)),
        state_bytes=9,
        recurrent=chance.random() < 0.5,
    )
    ids: list[RecordId] = []
    for kind in ("rows", "window", "state"):
        for _ in range(14):
            start = chance.randrange(40)
            ids.append(RecordId(kind, start, start + chance.randrange(1, 12), b"", b""))
    records = [(id, Place(1, 0, 0)) for id in ids]
    length, parts = longest_cover(records, layout, 40)

    def covers(kind: str, first: int, last: int) -> bool:
        spans = [range(id.start, id.stop) for id in ids if id.kind == kind]
        return all(any(token in span for span in spans) for token in range(first, last))

    def restores(n: int) -> bool:
        windows = {id.stop for id in ids if id.kind == "window"}
        states = {id.stop for id in ids if id.kind == "state"}
        if not covers("rows", 0, n) or (layout.recurrent and n not in states):
            return False
        if layout.window is None:
            return True
        resumes = layout.recurrent or n in windows
        return resumes and covers("window", max(0, n - layout.window), n)

    assert length == max((n for n in range(1, 41) if restores(n)), default=0)
    for kind, first in (("rows", 0), ("window", max(0, length - (layout.window or 0)))):
        at = first
        for part in (part for part in parts if part.id.kind == kind):
            assert part.start == at
            assert part.id.start <= part.start < part.stop <= part.id.stop
            at = part.stop
        assert at >= length or (kind == "window" and layout.window is None)


def test_a_file_torn_at_any_byte_has_what_is_before(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    ends = [0]
    for one in prefix(A[:24], 60):
        store.put(one)
        ends.append(store.nbytes)
    (segment,) = tmp_path.glob("*.records")
    whole = segment.read_bytes()
    for size in range(len(whole), -1, -3):
        segment.write_bytes(whole[:size])
        complete = sum(end <= size for end in ends) - 1
        assert restored(store, (*A[:24], 1)) == BLOCK * complete


def test_a_record_larger_than_a_file_gets_one_of_its_own(tmp_path: Path) -> None:
    store = filled(tmp_path, record(A[:8], "rows", 0, 9000), record(A[:16], "rows", 8))
    assert len(list(tmp_path.glob("*.records"))) == 2
    assert restored(store, A[:17]) == 16


def test_only_the_owner_can_read_what_is_stored(tmp_path: Path) -> None:
    fingerprint = Fingerprint("org/model", "target", {})
    folder = CacheFolder(tmp_path, fingerprint)
    readable = folder.path / FILE
    readable.touch(mode=0o644)  # as earlier versions left it
    readable.chmod(0o644)
    store = DiskStore(folder.path, BLOCK)
    store.put(record(A, "rows", 0))
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.path.iterdir()}
    assert {f"{FILE}-wal", f"{FILE}-shm", "about.json", "lock"} < set(modes)
    assert set(modes.values()) == {0o600}
    store.close()
    folder.close()


DTYPES = (mx.float32, mx.bfloat16, mx.uint32, mx.bool_)


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
