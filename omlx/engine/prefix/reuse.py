"""When prefixes are saved and restored, as cache operations, and how rows start from them.

    prompt    0 ─────── interval ─────── … ─────── stable ── end
    output                                                   └──── …

A prompt is saved at its end; where a cache can only resume at saved positions, at the stable end,
at every interval and at its branch instead. `stable` is where the template's generation prompt
begins: the next turn surely repeats what is before it. The branch is a block boundary before a
prompt parts from a cached one: a third prompt may part there, too. When a request ends, all that
its cache holds is saved. Pure Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from omlx.engine.disk.tier import LOAD_BYTES, Disk
from omlx.engine.piece import Layout
from omlx.engine.prefix.index import PrefixIndex, PrefixMatch
from omlx.engine.step.plan import CacheOp, Evict, Load, Loaded, Open, PendingOps, Restore, Save
from omlx.engine.step.row import Row
from omlx.errors import Reason
from omlx.exactness import Bounds
from omlx.records import DiskStats, PrefixStats

Room: TypeAlias = Callable[[], int | None]
"""Returns how many bytes the memory budget has left; None for no limit."""


BRANCH_TOKENS: Final = 16
"""Tokens before two prompts part — a third may change the word a little earlier."""

TAIL: Final = 8
"""Last tokens of a prompt — a GPU reads as many in about the time of one."""


class PrefixReuse:
    """The prefix cache as the planner sees it.

    `never` is why this model's caches cannot be saved, if so. A row holds the blocks that it
    restored or saved until `close`. `disk` is the tier below the index, or why there is none. With
    the `bounds` of a strict model, only what prompts computed is kept, up to multiples of the grid.
    """

    def __init__(
        self,
        layout: Layout,
        block_tokens: int,
        max_bytes: int,
        never: Reason | None = None,
        disk: Disk = None,
        bounds: Bounds | None = None,
    ) -> None:
        self.layout = layout
        self.disk = None if isinstance(disk, Reason) else disk
        self._no_disk = disk if isinstance(disk, Reason) else None
        self._never = never
        self._bounds = bounds
        self.index = PrefixIndex(layout, block_tokens, max_bytes)
        self._saved: dict[int, int] = {}
        self._branches: dict[int, int] = {}

    @property
    def off_reason(self) -> Reason | None:
        """Why nothing is cached now, or None."""
        if self._never is None and not self.index.max_bytes:
            return Reason("prefix.off.no_room")
        return self._never

    def match(self, row: Row) -> PrefixMatch | None:
        """Return the longest prefix that a new row can be restored from. Modifies nothing.

        There is none where logprobs of the prompt are requested: cached prefixes have no logits.
        """
        if self.unused(row):
            return None
        if self._bounds is not None and row.request.spans:
            return None  # images move the ends of chunks
        return self.longest(row.tokens, row.request.prompt_n)

    def longest(self, tokens: Sequence[int], prompt: int) -> PrefixMatch | None:
        """Return the longest prefix of `tokens`, the first `prompt` of which are a prompt."""
        if self._bounds is None:
            return self.index.match(tokens)
        match = self.index.match(tokens[: self._bounds.floor(prompt - 1) + 1])
        if match is not None and match.length % self._bounds.grid:
            match = self.index.match(tokens[: self._bounds.floor(match.length) + 1])
        return match

    def cached_length(self, tokens: Sequence[int]) -> int:
        """Return how many leading tokens of a prompt would be restored. Modifies nothing."""
        found = None if self.off_reason is not None else self.longest(tokens, len(tokens))
        return 0 if found is None else found.length

    def restore(self, row: Row, match: PrefixMatch | None) -> list[CacheOp]:
        """Count a hit or a miss; restore the row."""
        if self.unused(row):
            return []
        self._branches[row.id] = self._branch(row, _length(match))
        self.index.use(row.id, match)
        if match is None:
            return []
        if self.disk is not None:
            self.disk.offer(match.tokens, match.parts, hit=True)
        self._saved[row.id] = match.length
        return [Restore(row.id, match.pieces, match.length, len(row.tokens))]

    def save_loaded(self, row: Row, length: int, room: Room) -> list[CacheOp]:
        """Save the first `length` tokens of a row, which came from disk, within `room`."""
        assert self.disk is not None
        self.disk.count_hit(length)
        self._branches[row.id] = self._branch(row, length)
        ops = self._save(row, length, room)
        for op in ops:
            if isinstance(op, Save):
                self.disk.mark_stored(op.pieces)
        return ops

    def chunk(self, row: Row, budget: int) -> int:
        """Return how many tokens of the prompt to read next: up to `budget`, the last token or the
        position to save at."""
        start = row.computed
        end = start + min(budget, row.pending - 1)
        for stop in (self._branches.get(row.id, 0), self._last_save(row)):
            if start < stop < end:
                end = stop
        return end - start

    def tail(self, row: Row) -> int:
        """Return how many last tokens of a prompt are read by its first decode window.

        More than one saves a pass, where nothing is to be saved between them.
        """
        request = row.request
        scored = request.prompt_logprobs is not None
        if self._bounds is not None or self.off_reason is not None or scored or request.spans:
            return 1
        if self.layout.resumes_anywhere:
            return TAIL
        return max(1, min(TAIL, row.prompt_len - self._last_save(row)))

    def after_chunk(self, row: Row, room: Room) -> list[CacheOp]:
        """Save the prompt where a chunk ended at a position to save at, within `room`."""
        at, end = row.computed, self._last_save(row)
        since = at - self._saved.get(row.id, 0)
        between = at < end and not self.layout.resumes_anywhere and since >= self.layout.interval
        ends = self.layout.resumes_anywhere and 1 < row.pending <= row.tail
        lasting = ends or at in (end, self._branches.get(row.id))
        if not lasting and not between:
            return []
        return self._save(row, at, room, lasting=lasting)

    def close(self, row: Row, room: Room | None = None) -> list[CacheOp]:
        """Release a row. With `room`, save all that its cache holds, within it."""
        ops: list[CacheOp] = []
        kept = self._bounds is None and row.computed <= len(row.tokens)
        if room is not None and kept:
            ops = self._save(row, row.computed, room, lasting=True)
        self.index.release(row.id)
        self._saved.pop(row.id, None)
        self._branches.pop(row.id, None)
        return ops

    def write(self, tokens: Sequence[int]) -> None:
        """Have the longest cached prefix of `tokens` written to disk, however short."""
        match = self.index.match([*tokens, 0])
        if match is not None and self.disk is not None:
            self.disk.offer(match.tokens, match.parts, hit=True)

    def forget(self, pieces: list[int]) -> list[CacheOp]:
        """Remove pieces whose copy failed."""
        return self._evict(self.index.forget(pieces))

    def clear(self) -> list[CacheOp]:
        """Evict everything, on disk too. Restored rows have copies."""
        if self.disk is not None:
            self.disk.clear()
        return self._evict(self.index.clear())

    def shrink(self, max_bytes: int) -> list[CacheOp]:
        return self._evict(self.index.evict(max_bytes))

    def set_prefix_budget(self, max_bytes: int) -> list[CacheOp]:
        """Evict down to `max_bytes`, the limit from now on."""
        ops = self.shrink(max_bytes)
        self.index.max_bytes = max_bytes
        return ops

    def stats(self) -> PrefixStats:
        index, counts = self.index, self.index.counts
        return PrefixStats(
            off=self.off_reason,
            nbytes=index.nbytes,
            max_bytes=index.max_bytes,
            tokens=index.tokens,
            hits=counts.hits,
            misses=counts.misses,
            hit_tokens=counts.hit_tokens,
            states_used=counts.states_used,
            stored=dict(counts.stored),
            evicted=dict(counts.evicted),
            asked=counts.asked,
            refused=counts.refused,
            disk=DiskStats(self._no_disk) if self.disk is None else self.disk.stats(),
        )

    def unused(self, row: Row) -> bool:
        """Whether a row is computed without cached prefixes."""
        scored = row.request.prompt_logprobs is not None
        return self.off_reason is not None or scored or row.cold

    def _last_save(self, row: Row) -> int:
        last, stable = row.prompt_len - 1, row.request.stable
        if self._bounds is not None:
            last = self._bounds.floor(row.request.prompt_n - 1)
            return min(self._bounds.floor(stable) or last, last)
        if self.layout.resumes_anywhere:
            return last
        return min(stable or last, last)

    def _branch(self, row: Row, cached: int) -> int:
        """Return the length to save at before a row parts from a cached prompt; 0 for none.

        None is needed where any length can be restored, or less than a block would be gained.
        """
        if self.layout.resumes_anywhere:
            return 0
        block = self.index.block_tokens
        at = (self.index.shared(row.tokens) - BRANCH_TOKENS) // block * block
        if self._bounds is not None:
            at = self._bounds.floor(at)
        return at if cached + block <= at < self._last_save(row) else 0

    def _save(self, row: Row, length: int, room: Room, *, lasting: bool = False) -> list[CacheOp]:
        """Save the first `length` tokens, which the row's cache holds; on disk too if `lasting`."""
        if self.off_reason is not None or not length:
            return []
        self._saved[row.id] = length
        tokens = row.tokens[:length]
        pieces, evicted = self.index.insert(row.id, tokens, room())
        ops = self._evict(evicted)
        if pieces:
            ops.append(Save(row.id, pieces))
        if self.disk is not None and lasting:
            match = self.index.match([*tokens, 0])
            if match is not None and match.length == length:
                asked_for = row.request.prefill_only
                self.disk.offer(match.tokens, match.parts, hit=asked_for)
        return ops

    def _evict(self, pieces: tuple[int, ...]) -> list[CacheOp]:
        if self.disk is not None:
            self.disk.evicted(pieces)
        return [Evict(pieces)] if pieces else []


class RowStarter:
    """Starts the rows of one model. `started` is called with each one before its prompt is read."""

    def __init__(self, prefix: PrefixReuse, started: Callable[[Row], None]) -> None:
        self._prefix = prefix
        self._started = started
        self._disk = prefix.disk

    def open(self, row: Row) -> list[CacheOp]:
        """Start a row from the longest cached prefix; `restoring` if the disk may have more."""
        request, logprobs = row.request, (row.request.top_logprobs, row.request.prompt_logprobs)
        ops: list[CacheOp] = [Open(row.id, request.sampling, *logprobs, request.spans)]
        match = self._prefix.match(row)
        disk = None if self._prefix.unused(row) else self._disk
        if disk is not None and disk.begin(row.id, row.tokens, _length(match)):
            row.start(0, restoring=True)
            return ops
        self._start(row, _length(match))
        return ops + self._prefix.restore(row, match)

    def active(self, running: Sequence[Row]) -> bool:
        """Whether a row can be read: it waits for no disk, or the disk has delivered."""
        return any(not s.restoring for s in running) or self.arrived(running)

    def arrived(self, running: Sequence[Row]) -> bool:
        """Whether something has come from disk for a row."""
        return self._next(running) is not None

    def take(self, running: Sequence[Row], pending: PendingOps, room: Room) -> dict[int, Loaded]:
        """Take what has come from disk for a row, and start the row when it is complete; its prefix
        is then saved within `room`. Return the records that the next operations load, by row.
        """
        row = self._next(running)
        if self._disk is None or row is None:
            return {}
        row_id = row.id
        records, length = self._disk.take(row_id, LOAD_BYTES)
        if length is None:
            pending.next.append(Load(row_id))
            return {row_id: records}
        match = self._prefix.match(row)
        if length > _length(match):
            self._start(row, length)
            pending.next.append(Load(row_id, length, row.prompt_len))
            pending.next += self._prefix.save_loaded(row, length, room)
        else:
            self._start(row, _length(match))
            pending.next += [Load(row_id, 0), *self._prefix.restore(row, match)]
        return {row_id: records}

    def drop(self, row_id: int) -> None:
        """Cancel a row's reads from disk, if there are any."""
        if self._disk is not None:
            self._disk.drop(row_id)

    def _next(self, running: Sequence[Row]) -> Row | None:
        if self._disk is None:
            return None
        return next((s for s in running if s.restoring and self._disk.ready(s.id)), None)

    def _start(self, row: Row, cached: int) -> None:
        row.start(cached, self._prefix.tail(row))
        self._started(row)


def _length(match: PrefixMatch | None) -> int:
    return 0 if match is None else match.length
