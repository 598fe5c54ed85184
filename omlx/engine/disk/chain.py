"""Keys of prefixes: hashes chained over the blocks of their tokens, so that none shows a token."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

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
