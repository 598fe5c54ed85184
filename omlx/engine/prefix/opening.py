"""How rows start: empty, from a prefix in memory, or once a longer one has come from disk.

On behalf of the scheduler, which alone writes to sequences otherwise. Pure Python.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from omlx.engine.disk.restores import Restores
from omlx.engine.plan import CacheOp, Load, Loaded, Open
from omlx.engine.prefix.index import PrefixMatch
from omlx.engine.prefix.reuse import PrefixReuse, Room
from omlx.engine.sequence import Sequence

LOAD_BYTES: Final = 32 << 20
"""Bytes from disk that one step takes. To copy them takes some 10 ms, less than a chunk of a prompt
that is read beside decoding rows.
"""


class Opening:
    """Starts the rows of one model."""

    def __init__(self, prefix: PrefixReuse) -> None:
        self._prefix = prefix
        self._restores = None if prefix.disk is None else Restores(prefix.disk)

    def open(self, sequence: Sequence) -> list[CacheOp]:
        """Start a row from the longest cached prefix, unless the disk may have a longer one: then
        it is `restoring`.
        """
        request, row = sequence.request, sequence.row
        prompt_logprobs = request.prompt_logprobs
        ops: list[CacheOp] = [
            Open(row, request.sampling, request.top_logprobs, prompt_logprobs, request.spans)
        ]
        match = self._prefix.match(sequence)
        usable = self._prefix.off_reason is None and prompt_logprobs is None
        if usable and self._restores is not None:
            if self._restores.begin(row, sequence.tokens, _length(match)):
                sequence.start(0, restoring=True)
                return ops
        sequence.start(_length(match))
        return ops + self._prefix.restore(sequence, match)

    def arrived(self, running: Iterable[Sequence]) -> list[Sequence]:
        """Return the rows for which something has come from disk."""
        if self._restores is None:
            return []
        return [s for s in running if s.restoring and self._restores.ready(s.row)]

    def restore(self, sequence: Sequence, room: Room) -> tuple[list[CacheOp], Loaded]:
        """Take what has come from disk for a row, and at the end start it. Return the operations,
        and the records that they load. The prefix is saved within `room`.
        """
        assert self._restores is not None
        row = sequence.row
        records, length = self._restores.take(row, LOAD_BYTES)
        if length is None:
            return [Load(row)], records
        match = self._prefix.match(sequence)
        if length <= _length(match):
            sequence.start(_length(match))
            return [Load(row, 0), *self._prefix.restore(sequence, match)], records
        sequence.start(length)
        load = Load(row, length, sequence.prompt_len)
        return [load, *self._prefix.restored(sequence, length, room)], records

    def drop(self, row: int) -> None:
        """Give a row up that waits for the disk, if it does."""
        if self._restores is not None:
            self._restores.drop(row)


def _length(match: PrefixMatch | None) -> int:
    return 0 if match is None else match.length
