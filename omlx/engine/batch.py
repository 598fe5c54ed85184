"""Which rows share one cache, and when they come and go. Pure Python.

Rows join when a second one decodes; one that is left alone stays for some steps, so that a flapping second row does
not copy caches back and forth, and is then split off. Everything is said in cache operations.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Final, Protocol

from omlx.engine.limits import Limits
from omlx.engine.plan import CacheOp, Extract, Filter, Merge
from omlx.engine.sequence import Sequence
from omlx.errors import Reason

LINGER_STEPS: Final = 16


class CacheSizes(Protocol):
    def row_bytes(self, row: int) -> int:
        """Bytes that a row's cache arrays take now."""
        ...


class Batch:
    """`off` says why rows of this model cannot share a cache, if they cannot. `members` are in the cache's order."""

    def __init__(self, limits: Limits, sizes: CacheSizes, off: Reason | None) -> None:
        self.members: list[int] = []
        self.off = off
        self._limits = limits
        self._alone: int | None = None
        self._alone_steps = 0
        self._sizes = sizes

    def changes(self, decoding: Seq[Sequence]) -> bool:
        """Whether `arrange` would have something to do."""
        if len(decoding) == 1:
            return self._leaves(decoding[0].row)
        return self.off is None and any(s.row not in self.members for s in decoding)

    def arrange(self, decoding: Seq[Sequence]) -> list[CacheOp]:
        """Bring the batch in line with who decodes. Counts a step for a row that is alone."""
        if len(decoding) == 1:
            row = decoding[0].row
            ops: list[CacheOp] = []
            if self._leaves(row):
                ops = [Extract(row), Filter(())]
                self.members = []
            self._alone_steps = self._alone_steps + 1 if row == self._alone else 1
            self._alone = row
            return ops
        self._alone = None
        # A row with several pending tokens commits them in a window of its own first; so does one that has read
        # nothing yet: some recurrences treat the first token apart, and merging would give them a state of zeros.
        ready = [
            s
            for s in decoding
            if s.row not in self.members and s.pending == 1 and s.computed and not s.unread
        ]
        joining = (
            self._fitting(ready, {s.row: s.computed for s in decoding}) if self.off is None else ()
        )
        if not joining or len(joining) + len(self.members) < 2:
            return []
        self.members.extend(joining)
        return [Merge(joining)]

    def remove(self, row: int, *, keep_cache: bool) -> list[CacheOp]:
        """A row leaves for good; it takes its cache along or not."""
        if row not in self.members:
            return []
        self.members.remove(row)
        rest = Filter(tuple(self.members))
        return [Extract(row), rest] if keep_cache else [rest]

    def _leaves(self, row: int) -> bool:
        lingered = row == self._alone and self._alone_steps >= LINGER_STEPS
        return lingered and row in self.members

    def _fitting(self, candidates: Seq[Sequence], lengths: dict[int, int]) -> tuple[int, ...]:
        """Those rows whose merge stays within the batch's memory: every row is padded to the longest one."""
        rows = list(self.members)
        joined: list[int] = []
        for sequence in candidates:
            trial = [*rows, sequence.row]
            longest = max(lengths[row] for row in trial)
            per_token = self._sizes.row_bytes(sequence.row) / max(1, sequence.computed)
            if len(trial) * longest * per_token <= self._limits.batch_bytes:
                rows = trial
                joined.append(sequence.row)
        return tuple(joined)
