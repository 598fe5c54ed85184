"""How rows start: empty, from a prefix in memory, or once a longer one has come from disk.

On behalf of the scheduler, which alone writes to sequences otherwise. Pure Python.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq

from omlx.engine.disk.tier import LOAD_BYTES, Restores
from omlx.engine.pending_ops import PendingOps
from omlx.engine.plan import CacheOp, Load, Loaded, Open
from omlx.engine.prefix.index import PrefixMatch
from omlx.engine.prefix.reuse import PrefixReuse, Room
from omlx.engine.sequence import Sequence


class Opening:
    """Starts the rows of one model. `started` is called with each one before its prompt is read."""

    def __init__(self, prefix: PrefixReuse, started: Callable[[Sequence], None]) -> None:
        self._prefix = prefix
        self._started = started
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
        usable = self._prefix.off_reason is None and prompt_logprobs is None and not sequence.cold
        restores = self._restores if usable else None
        if restores is not None and restores.begin(row, sequence.tokens, _length(match)):
            sequence.start(0, restoring=True)
            return ops
        self._start(sequence, _length(match))
        return ops + self._prefix.restore(sequence, match)

    def active(self, running: Seq[Sequence]) -> bool:
        """Whether a row does not wait for the disk, or need not any more."""
        return any(not s.restoring for s in running) or self.arrived(running)

    def arrived(self, running: Seq[Sequence]) -> bool:
        """Whether something has come from disk for a row."""
        return self._next(running) is not None

    def restore(self, running: Seq[Sequence], pending: PendingOps, room: Room) -> dict[int, Loaded]:
        """Take what has come from disk for a row, and start the row when it is complete; its prefix
        is then saved within `room`. Return the records that the next operations load, by row.
        """
        sequence = self._next(running)
        if self._restores is None or sequence is None:
            return {}
        row = sequence.row
        records, length = self._restores.take(row, LOAD_BYTES)
        if length is None:
            pending.next.append(Load(row))
            return {row: records}
        match = self._prefix.match(sequence)
        if length > _length(match):
            self._start(sequence, length)
            pending.next.append(Load(row, length, sequence.prompt_len))
            pending.next += self._prefix.restored(sequence, length, room)
        else:
            self._start(sequence, _length(match))
            pending.next += [Load(row, 0), *self._prefix.restore(sequence, match)]
        return {row: records}

    def drop(self, row: int) -> None:
        """Give a row up that waits for the disk, if it does."""
        if self._restores is not None:
            self._restores.drop(row)

    def _next(self, running: Seq[Sequence]) -> Sequence | None:
        if self._restores is None:
            return None
        return next((s for s in running if s.restoring and self._restores.ready(s.row)), None)

    def _start(self, sequence: Sequence, cached: int) -> None:
        sequence.start(cached)
        self._started(sequence)


def _length(match: PrefixMatch | None) -> int:
    return 0 if match is None else match.length
