"""Cache pieces as bytes with a checksum, the keys of prefixes, and pieces joined into longer runs.

    magic · size of header · size of body · CRC-32 of both │ header (JSON) │ body: the arrays

A CRC-32 finds every single flipped bit and every torn end. Keys are hashes chained over the blocks
of a prefix's tokens, so that none shows a token.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby
from math import prod
from string import ascii_letters
from struct import Struct
from typing import Any, BinaryIO, Final, NamedTuple, TypeAlias
from zlib import crc32

from omlx.engine.piece import Kind, Layout

Spec: TypeAlias = Any
"""Types and shapes of the arrays in a body, as JSON; see `omlx.engine.disk.serial`."""

Buffer: TypeAlias = bytes | memoryview

FORMAT: Final = 2
"""Version of records and of the table. Another one makes a folder stale."""

KEY_BYTES: Final = 16
_ID_BYTES: Final = 8
"""Image tokens have ids down to -(2 ** 62 + 1)."""

_HEAD: Final = Struct("<4sIQI")
_MAGIC: Final = b"omlx"


class Damaged(Exception):
    """Bytes that are not the record that was written there."""


class RecordId(NamedTuple):
    """A kind of layer, and tokens [start, stop) of the prefix with this key.

    `node` is the key of the whole blocks before the block in which the piece ends.
    """

    kind: Kind
    start: int
    stop: int
    key: bytes
    node: bytes


class Place(NamedTuple):
    """Bytes of a file, `segment`, that hold a record."""

    segment: int
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Record:
    """A piece with its arrays: `buffers` behind one another make the body."""

    id: RecordId
    spec: Spec
    buffers: Sequence[Buffer]

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.buffers))

    def encode(self) -> list[Buffer]:
        """Return the record in parts, to be written behind one another."""
        id = self.id
        fields = [FORMAT, id.kind, id.start, id.stop, id.key.hex(), self.spec]
        header = json.dumps(fields, separators=(",", ":")).encode()
        checksum = crc32(header)
        for buffer in self.buffers:
            checksum = crc32(buffer, checksum)
        return [_HEAD.pack(_MAGIC, len(header), self.nbytes, checksum), header, *self.buffers]


def decode(data: bytes, id: RecordId) -> Record:
    """Return the record of a piece. Raises Damaged if these bytes are not just that record."""
    if len(data) < _HEAD.size:
        raise Damaged("it is cut off")
    magic, header_bytes, body_bytes, checksum = _HEAD.unpack_from(data)
    view = memoryview(data)[_HEAD.size :]
    if magic != _MAGIC or len(view) != header_bytes + body_bytes or crc32(view) != checksum:
        raise Damaged("its checksum does not match")
    try:
        version, kind, start, stop, key, spec = json.loads(bytes(view[:header_bytes]))
    except (ValueError, TypeError, RecursionError) as error:
        raise Damaged("its head is none") from error
    if (version, kind, start, stop, key) != (FORMAT, id.kind, id.start, id.stop, id.key.hex()):
        raise Damaged("it is another record")
    return Record(id, spec, [view[header_bytes:]])


def read_record(file: BinaryIO, id: RecordId) -> Record:
    """Read the record of a piece, which comes next. Raises Damaged for anything else."""
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        raise Damaged("it is cut off")
    _, header_bytes, body_bytes, _ = _HEAD.unpack(head)
    if header_bytes + body_bytes > os.fstat(file.fileno()).st_size - file.tell():
        raise Damaged("it is cut off")
    return decode(head + file.read(header_bytes + body_bytes), id)


class TokenChain:
    """The keys of all prefixes of `tokens`; those of whole blocks are computed once.

    The key of n tokens hashes the key of the whole blocks before them, and the rest.
    """

    def __init__(self, tokens: Sequence[int], block_tokens: int) -> None:
        self._ids = array("q", tokens).tobytes()
        self._block_tokens = block_tokens
        self._nodes = [b""]

    def __len__(self) -> int:
        return len(self._ids) // _ID_BYTES

    def node(self, stop: int) -> bytes:
        """Return the key of the whole blocks before the block that holds token `stop` - 1.

        Raises ValueError, as `key` does, unless there are `stop` tokens.
        """
        if not 1 <= stop <= len(self):
            raise ValueError(f"a key of {stop} tokens of {len(self)}")
        blocks = (stop - 1) // self._block_tokens
        while len(self._nodes) <= blocks:
            start = (len(self._nodes) - 1) * self._block_tokens
            self._nodes.append(self._hash(start, start + self._block_tokens))
        return self._nodes[blocks]

    def record(self, kind: Kind, start: int, stop: int) -> RecordId:
        return RecordId(kind, start, stop, self.key(stop), self.node(stop))

    def key(self, stop: int) -> bytes:
        """Return the key of the first `stop` tokens, at least one."""
        self.node(stop)
        return self._hash((stop - 1) // self._block_tokens * self._block_tokens, stop)

    def _hash(self, start: int, stop: int) -> bytes:
        ids = self._ids[start * _ID_BYTES : stop * _ID_BYTES]
        node = self._nodes[start // self._block_tokens]
        return blake2b(ids, digest_size=KEY_BYTES, key=node).digest()


class Part(NamedTuple):
    """Tokens [start, stop) of a record: records may overlap."""

    id: RecordId
    place: Place
    start: int
    stop: int

    @property
    def kind(self) -> Kind:
        return self.id.kind


def longest_cover(
    records: Iterable[tuple[RecordId, Place]], layout: Layout, longest: int
) -> tuple[int, list[Part]]:
    """Return the length of the longest prefix that records restore, up to `longest` tokens, and its
    parts in the order of the tokens, rows first.
    """
    kinds: dict[str, list[tuple[RecordId, Place]]] = {"rows": [], "window": [], "state": []}
    for record in records:
        kinds[record[0].kind].append(record)
    rows = _cover(kinds["rows"], 0, longest)
    reach = rows[-1].stop if rows else 0
    states = {id.stop: (id, place) for id, place in kinds["state"]}
    ends = {reach}
    if layout.recurrent:
        ends = set(states)
    elif layout.window is not None:
        ends = {id.stop for id, _ in kinds["window"]}
    for length in sorted((end for end in ends if 0 < end <= reach), reverse=True):
        parts = [part for part in rows if part.start < length]
        if layout.window is not None:
            first = max(0, length - layout.window)
            windows = _cover(kinds["window"], first, length)
            if not windows or windows[-1].stop < length:
                continue
            parts += windows
        if layout.recurrent:
            id, place = states[length]
            parts.append(Part(id, place, id.start, id.stop))
        return length, parts
    return 0, []


def _cover(records: Sequence[tuple[RecordId, Place]], start: int, stop: int) -> list[Part]:
    """Return parts that cover [start, stop) without a gap, or as much from its start as can be."""
    parts: list[Part] = []
    best: tuple[RecordId, Place] | None = None
    at = start
    for id, place in sorted(records, key=lambda record: record[0].start):
        if best is not None and id.start > at:
            parts.append(Part(*best, at, min(stop, best[0].stop)))
            at, best = parts[-1].stop, None
        if id.start <= at < id.stop and at < stop and (best is None or id.stop > best[0].stop):
            best = (id, place)
    if best is not None:
        parts.append(Part(*best, at, min(stop, best[0].stop)))
    return parts


@dataclass(frozen=True, slots=True)
class Run:
    """Tokens [start, stop) of one kind of layer. `buffers` are those of the arrays in `spec`."""

    kind: Kind
    start: int
    stop: int
    spec: Spec
    buffers: Sequence[Buffer]

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.buffers))


class _Array(NamedTuple):
    """Bytes [start, stop) of a body, which hold an array of this shape."""

    start: int
    stop: int
    shape: Sequence[int]


class _Body(NamedTuple):
    """The arrays of a record, of which a part is wanted. `rowless`: their spec without rows."""

    part: Part
    view: memoryview
    spec: Spec
    rowless: Spec
    arrays: Sequence[_Array]


def join(read: Iterable[tuple[Part, Record]]) -> Iterator[Run]:
    """Yield the wanted parts of adjacent records, as one run where they can be joined.

    Copies, unless a run is one whole record.
    """
    for _, alike in groupby(_bodies(read), key=lambda body: body.rowless):
        yield _join(list(alike))


def _bodies(read: Iterable[tuple[Part, Record]]) -> Iterator[_Body]:
    spec, rowless, arrays = None, None, list[_Array]()
    for part, record in read:
        if record.spec != spec:  # all whole blocks have one spec
            spec = record.spec
            rowless, arrays = with_rows(spec, 0), list(_arrays(spec))
        (body,) = record.buffers
        yield _Body(part, memoryview(body), spec, rowless, arrays)


def nbytes_of(spec: Spec) -> int:
    """Bytes of the arrays of a spec."""
    return max((array.stop for array in _arrays(spec)), default=0)


def _arrays(spec: Spec) -> Iterator[_Array]:
    at = 0
    for dtype, shape in _shapes(spec):
        digits = dtype.lstrip(ascii_letters)
        item_bytes = int(digits or 8) // 8  # "bool" has none
        start, at = at, at + item_bytes * prod(shape)
        yield _Array(start, at, shape)


def _shapes(spec: Spec) -> Iterator[tuple[str, Sequence[int]]]:
    """Yield type and shape of each array."""
    if isinstance(spec, dict):
        yield from spec.items()
    elif spec is not None:
        for part in spec[1:]:
            yield from _shapes(part)


def _join(bodies: Sequence[_Body]) -> Run:
    first = bodies[0]
    kind, start, stop = first.part.kind, first.part.start, bodies[-1].part.stop
    if len(bodies) == 1 and (start, stop) == (first.part.id.start, first.part.id.stop):
        whole = [first.view[array.start : array.stop] for array in first.arrays]
        return Run(kind, start, stop, first.spec, whole)
    joined = [b"".join(_rows(bodies, i)) for i in range(len(first.arrays))]
    return Run(kind, start, stop, with_rows(first.spec, stop - start), joined)


def _rows(bodies: Sequence[_Body], i: int) -> Iterator[memoryview]:
    """Yield the wanted rows of array `i` [..., rows, width] of all records, one behind the other in
    the array of all of them.
    """
    heads = prod(bodies[0].arrays[i].shape[:-2])
    spans: list[tuple[memoryview, int, int, int]] = []
    for body in bodies:
        array, part = body.arrays[i], body.part
        head_bytes = (array.stop - array.start) // heads
        row_bytes = head_bytes // array.shape[-2]
        first, last = part.start - part.id.start, part.stop - part.id.start
        view = body.view[array.start : array.stop]
        spans.append((view, head_bytes, row_bytes * first, row_bytes * last))
    for head in range(heads):
        for view, head_bytes, first, last in spans:
            offset = head * head_bytes
            yield view[offset + first : offset + last]


def with_rows(spec: Spec, rows: int) -> Spec:
    """Return a spec of arrays [..., rows, width] with `rows` rows."""
    if spec is None:
        return None
    if isinstance(spec, dict):
        return {dtype: [*shape[:-2], rows, *shape[-1:]] for dtype, shape in spec.items()}
    return [spec[0], *(with_rows(part, rows) for part in spec[1:])]
