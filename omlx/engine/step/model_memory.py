"""The memory of one model's rows and prefix cache, as the memory guard sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from omlx.engine.device_errors import TOO_MUCH, DeviceFault, FaultKind
from omlx.engine.memory import output_tokens, stepped
from omlx.engine.piece import Layout
from omlx.engine.prefix.reuse import PrefixReuse
from omlx.engine.step.plan import Extract, PendingOps, Save
from omlx.engine.step.planner import Planner
from omlx.engine.step.requests import AdmissionQueue
from omlx.engine.step.row import CacheSizes, Row, Status
from omlx.engine.types import Request

EVERYTHING: Final = 1 << 62
"""More bytes than there are."""


@dataclass(eq=False)
class ModelMemory:
    """A `MemoryClient` over the state of one scheduler.

    Evictions are added to its pending operations.
    """

    _queue: AdmissionQueue
    _running: list[Row]
    _ops: PendingOps
    _prefix: PrefixReuse
    _planner: Planner
    _sizes: CacheSizes
    _relieved_at: float = 0.0  # time of the newest device error that passes were shortened for

    @property
    def used_at(self) -> float:
        return self._queue.used_at

    def need(self, row: Row) -> int:
        """Return the bytes that a row is going to take, a copy to move it included.

        Caches of drafters count beside other rows only: a prompt is not refused for its drafts.
        """
        request, rows = row.request, self._rows_grown()
        need = cache_need(request, self._prefix.layout)
        moved = moved_bytes([*rows, need]) - moved_bytes(rows)
        drafts = 0
        if rows:
            drafts = self._planner.speculator.cache_bytes(request, reserved_tokens(request))
        return need + moved + drafts + self._planner.looks.need(request)

    @property
    def reserved(self) -> int:
        layout = self._prefix.layout
        needs = [
            cache_need(row.request, layout) - self._sizes.row_bytes(row.id)
            for row in self._running
            if row.status is not Status.DONE
        ]
        pending = (*self._ops.next, *self._ops.later)
        saves = [sum(map(layout.nbytes, op.pieces)) for op in pending if isinstance(op, Save)]
        prefilling = [s.request for s in self._running if s.status is Status.PREFILL]
        rows = (self._sizes.row_bytes(row.id) for row in self._running)
        unseen = int(self._sizes.unseen * (self.cached + sum(rows)))
        images = sum(map(self._planner.looks.need, prefilling))
        growth = sum(need for need in needs if need > 0)
        drafts = self._planner.speculator.cache_growth(
            (s.request, reserved_tokens(s.request))
            for s in self._running
            if s.status is not Status.DONE
        )
        moved = moved_bytes(self._rows_grown())
        return sum(saves) + growth + images + unseen + drafts + moved

    def _rows_grown(self) -> list[int]:
        """Bytes of the KV caches of rows, when their prompts are read."""
        layout, size = self._prefix.layout, self._sizes.row_bytes
        running = [s for s in self._running if s.status is not Status.DONE]
        return [max(cache_need(s.request, layout), size(s.id)) for s in running]

    @property
    def activations(self) -> int:
        prompts = [s.prompt_len for s in self._running if s.status is Status.PREFILL]
        return self._planner.chunk.min_activations(max(prompts, default=0))

    @property
    def copied(self) -> int:
        """Bytes that the next step copies before it frees anything."""
        layout, copied = self._prefix.layout, 0
        for op in self._ops.next:
            if isinstance(op, Save):
                copied += sum(map(layout.nbytes, op.pieces))
            elif isinstance(op, Extract):
                copied += self._sizes.row_bytes(op.row)
        return copied

    def may_copy(self, row: int) -> bool:
        """Return whether there is room to copy a row out of its batch."""
        room = self._queue.memory.copy_room(self.copied)
        return room is None or self._sizes.row_bytes(row) <= room

    @property
    def cached(self) -> int:
        return self._prefix.index.nbytes

    @property
    def busy(self) -> bool:
        return bool(self._running)

    @property
    def freeing(self) -> bool:
        return bool(self._ops.next)

    @property
    def blocked_since(self) -> float | None:
        return self._queue.blocked_since

    def evict_prefixes(self, nbytes: int) -> int:
        before = self.cached
        self._ops.next += self._prefix.shrink(max(0, before - nbytes))
        if before < nbytes:  # not counted in `cached`: the draft's prefixes, idle features
            self._planner.speculator.clear()
            self._ops.next += self._planner.looks.clear()
        return before - self.cached

    def relieve(self, fault: DeviceFault) -> None:
        """Ask less of the device after an error: shorter passes, and prefixes of all models give
        way where memory is full. Once for an error, however many steps it condemns.
        """
        if fault.at == self._relieved_at:
            return
        self._relieved_at = fault.at
        if fault.kind in TOO_MUCH:
            self._planner.chunk.shrink()
        if fault.kind is FaultKind.OUT_OF_MEMORY:
            self._ops.next += self._prefix.shrink(0)
            self._queue.memory.evict_prefixes(EVERYTHING)


def cache_need(request: Request, layout: Layout) -> int:
    return layout.cache_bytes(reserved_tokens(request))


def reserved_tokens(request: Request) -> int:
    """Tokens for which a request's KV caches have room: its prompt and some output."""
    return stepped(len(request.tokens) + output_tokens(request))


def moved_bytes(rows: Sequence[int]) -> int:
    """Return the bytes of the largest of several `rows`: what joins or leaves a batch is copied."""
    return max(rows) if len(rows) > 1 else 0
