"""Batch: the rows that share a cache. Pure Python.

Rows join when a second one decodes. A row that is left alone stays for LINGER_STEPS, so that a
second row that comes and goes does not cause copies back and forth, and is then split off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from omlx.engine.step.plan import CacheOp, Extract, Filter, Merge
from omlx.engine.step.row import Row
from omlx.engine.types import Limits
from omlx.errors import Reason

LINGER_STEPS: Final = 16


class CacheSizes(Protocol):
    """`unseen` is the share of the caches' bytes that other processes hold: 0 but in stages."""

    unseen: float

    def row_bytes(self, row: int) -> int:
        """Bytes of a row's cache now."""
        ...


class Batch:
    """The rows that share a cache, in its order.

    `off_reason` says why rows of this model cannot, `no_uneven` why they cannot read windows of
    different lengths, and so not draft; or None.
    """

    def __init__(
        self,
        limits: Limits,
        sizes: CacheSizes,
        off_reason: Reason | None,
        no_uneven: Reason | None = None,
    ) -> None:
        self.members: list[int] = []
        self.excluded: set[int] = set()  # rows for which there was no room
        self.off_reason = off_reason
        self.no_uneven = no_uneven
        self._limits = limits
        self._most = limits.max_rows if limits.bounds is None else limits.bounds.rows
        self._sizes = sizes
        self._alone: int | None = None  # the only row that decodes, since so many steps
        self._alone_steps = 0

    def changes(self, decoding: Sequence[Row]) -> bool:
        """Whether `arrange` might return operations."""
        if len(decoding) == 1:
            return bool(self.members) and self._splits_off(decoding[0].id)
        return self.off_reason is None and any(s.id not in self.members for s in decoding)

    def arrange(self, decoding: Sequence[Row]) -> list[CacheOp]:
        """Merge or split rows to fit those that decode. Called once per step."""
        if len(decoding) == 1:
            return self._arrange_alone(decoding[0].id) if self.members else []
        self._alone = None
        if self.off_reason is not None:
            return []
        # A row with several pending tokens commits them in a window of its own first. So does one
        # that has computed nothing yet: some recurrent layers treat the first token differently,
        # and a merge would give them a state of zeros.
        ready = [
            s
            for s in decoding
            if s.id not in self.members and s.pending == 1 and s.computed and not s.unread
        ]
        lengths = {s.id: s.computed for s in decoding}
        if self.members and self.members[0] not in lengths:  # the batch waits: no row joins
            return []
        joining = self._within_memory(ready, lengths)
        self.excluded = {s.id for s in ready}.difference(joining)
        if not joining or len(joining) + len(self.members) < 2:
            return []
        self.members.extend(joining)
        return [Merge(joining)]

    def may_draft(self, row: int, decoding: int) -> bool:
        """Whether a row may draft while `decoding` rows decode: not before it joins the batch."""
        if row in self.members:
            return self.no_uneven is None
        return decoding == 1 or self.off_reason is not None or row in self.excluded

    def remove(self, row: int, *, keep_cache: bool) -> list[CacheOp]:
        """Take out an ended row, with or without a cache."""
        if row not in self.members:
            return []
        last = self.members.pop()
        if row != last:  # whose cache alone is then moved
            self.members[self.members.index(row)] = last
        others = Filter(tuple(self.members))
        if keep_cache:
            return [Extract(row), others]
        return [others]

    def _arrange_alone(self, row: int) -> list[CacheOp]:
        splits_off = self._splits_off(row)
        if row != self._alone:
            self._alone, self._alone_steps = row, 0
        self._alone_steps += 1
        if not splits_off:
            return []
        self.members = []
        return [Extract(row), Filter(())]

    def _splits_off(self, row: int) -> bool:
        lingered = row == self._alone and self._alone_steps >= LINGER_STEPS
        return lingered and row in self.members

    def _within_memory(self, ready: Sequence[Row], lengths: dict[int, int]) -> tuple[int, ...]:
        """Return the ready rows for which the batch has room.

        Every row is padded to the longest; a strict model has a largest batch.
        """
        members = list(self.members)
        joined: list[int] = []
        for row in ready:
            candidates = [*members, row.id]
            if len(candidates) > self._most:
                break
            longest = max(lengths[member] for member in candidates)
            per_token = self._sizes.row_bytes(row.id) / max(1, row.computed)
            if len(candidates) * longest * per_token <= self._limits.batch_bytes:
                members = candidates
                joined.append(row.id)
        return tuple(joined)
