"""A cache piece as bytes with a checksum.

    magic · size of header · size of body · CRC-32 of both │ header (JSON) │ body: the arrays

A CRC-32 finds every single flipped bit and every torn end.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final, TypeAlias
from zlib import crc32

from omlx.engine.piece import Kind

Spec: TypeAlias = Any
"""Types and shapes of the arrays in a body, as JSON; see `omlx.engine.prefix.serial`."""

FORMAT: Final = 2
"""Version of records and of the table. Another one makes a folder stale."""

_HEAD: Final = Struct("<4sIQI")
_MAGIC: Final = b"omlx"


class Damaged(Exception):
    """Bytes that are not the record that was written there."""


@dataclass(frozen=True, slots=True)
class RecordId:
    """What a piece holds: a kind of layer, tokens [start, stop) of the prefix with this key.

    `node` is the key of the whole blocks before the block in which the piece ends.
    """

    kind: Kind
    start: int
    stop: int
    key: bytes
    node: bytes


@dataclass(frozen=True, slots=True)
class Record:
    """A piece with its arrays: `buffers` behind one another make the body."""

    id: RecordId
    spec: Spec
    buffers: Sequence[bytes | memoryview]

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(map(len, self.buffers))

    def encode(self) -> list[bytes | memoryview]:
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
    version, kind, start, stop, key, spec = json.loads(bytes(view[:header_bytes]))
    if (version, kind, start, stop, key) != (FORMAT, id.kind, id.start, id.stop, id.key.hex()):
        raise Damaged("it is another record")
    return Record(id, spec, [view[header_bytes:]])
