"""A cache piece as bytes with a checksum, and the keys of prefixes.

    magic · size of header · size of body · CRC-32 of both │ header (JSON) │ body: the arrays

A CRC-32 finds every single flipped bit and every torn end. Keys are hashes chained over the blocks
of a prefix's tokens, so that none shows a token.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
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


KEY_BYTES: Final = 16
_ID_BYTES: Final = 8
"""Image tokens have ids down to -(2 ** 62 + 1)."""


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

        Raises ValueError, as `key` does, unless there are so many tokens.
        """
        if not 1 <= stop <= len(self):
            raise ValueError(f"a key of {stop} tokens of {len(self)}")
        blocks = (stop - 1) // self._block_tokens
        while len(self._nodes) <= blocks:
            start = (len(self._nodes) - 1) * self._block_tokens
            self._nodes.append(self._hash(start, start + self._block_tokens))
        return self._nodes[blocks]

    def key(self, stop: int) -> bytes:
        """Return the key of the first `stop` tokens, at least one."""
        self.node(stop)
        return self._hash((stop - 1) // self._block_tokens * self._block_tokens, stop)

    def _hash(self, start: int, stop: int) -> bytes:
        ids = self._ids[start * _ID_BYTES : stop * _ID_BYTES]
        node = self._nodes[start // self._block_tokens]
        return blake2b(ids, digest_size=KEY_BYTES, key=node).digest()
