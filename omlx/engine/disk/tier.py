"""Prefixes on disk as the engine thread sees them: what is worth writing, and when.

    saved or hit ─► offer ─► pump, some pieces a step ─► DiskWorker
    a new row    ─► fetch ─► take, some bytes a step  ─► the row's cache

While rows run, pieces are turned into
bytes for at most `SHARE` of the time; the rest follows when the model is idle.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from omlx.engine.disk.chain import TokenChain
from omlx.engine.disk.fetch import Fetch
from omlx.engine.disk.record import Record, RecordId
from omlx.engine.disk.worker import DiskWorker
from omlx.engine.isolation import isolate
from omlx.engine.piece import Piece
from omlx.errors import Reason
from omlx.records import DiskStats

SHARE: Final = 0.005
"""The thread of the disk then takes a few times as long, on another core."""

IDLE_BYTES: Final = 8 << 20
"""Bytes to hand over in one step without running rows: rows of other models wait meanwhile."""

TOUCH_S: Final = 600.0
"""A prefix that is hit in memory again and again is marked as used on disk so often."""


@dataclass(frozen=True, slots=True)
class Worth:
    """Tokens from which a prefix is written before it was ever hit, and tokens that one on disk
    must have more than the one in memory.
    """

    writing: int = 512
    reading: int = 128


Disk: TypeAlias = "DiskTier | Reason | None"
"""Where prefixes are stored on disk, or why they are not."""

Dump: TypeAlias = Callable[[RecordId, Piece], Record | None]
"""Returns the arrays of a piece as bytes; None if they are not there yet."""


class DiskTier:
    """The disk below one prefix index, whose blocks have `block_tokens`. `close` gives it back.

    `dump` is set by the owner of the arrays before the first prefix is offered.
    """

    dump: Dump

    def __init__(
        self,
        worker: DiskWorker,
        block_tokens: int,
        worth: Worth,
        close: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._worker = worker
        self._block_tokens = block_tokens
        self._worth = worth
        self.close = close
        self._clock = clock
        self._offered: deque[tuple[TokenChain, Piece]] = deque()
        self._known: set[int] = set()
        self._touched: dict[int, float] = {}
        self._busy_until = 0.0  # seconds; rows that run are not held up before
        self.hits = 0
        self.hit_tokens = 0

    @property
    def can_pump(self) -> bool:
        return bool(self._offered) and self._worker.has_room

    def hand_over(self, seconds: float) -> None:
        """Hand over all that waits, for about so long."""
        until, before = self._clock() + seconds, -1
        while len(self._offered) != before and self._worker.wait_for_room(until - self._clock()):
            before = len(self._offered)
            self.pump(busy=False)

    def offer(self, tokens: Sequence[int], pieces: Sequence[Piece], *, hit: bool = False) -> None:
        """Have pieces written that hold `tokens` or a part of them, if it is worth it."""
        if len(tokens) < (self._block_tokens if hit else self._worth.writing):
            return
        new = [piece for piece in pieces if piece.id not in self._known]
        if not new:
            self._touch(tokens, pieces[-1].id)
            return
        chain = TokenChain(tokens, self._block_tokens)
        self._offered += [(chain, piece) for piece in new]
        self._known.update(piece.id for piece in new)

    def count_hit(self, tokens: int) -> None:
        """Count a prefix of so many tokens that came from disk."""
        self.hits += 1
        self.hit_tokens += tokens

    def restored(self, pieces: Iterable[Piece]) -> None:
        """These pieces came from disk."""
        self._known.update(piece.id for piece in pieces)

    def pump(self, *, busy: bool) -> None:
        """Hand over offered pieces: one of them at a time while rows run (`busy`)."""
        room, started = IDLE_BYTES, self._clock()
        if busy and started < self._busy_until:
            return
        while self.can_pump and room > 0:
            chain, piece = self._offered[0]
            if piece.id not in self._known:  # evicted meanwhile
                self._offered.popleft()
                continue
            id = RecordId(
                piece.kind, piece.start, piece.stop, chain.key(piece.stop), chain.node(piece.stop)
            )
            record = None
            with isolate() as outcome:
                record = self.dump(id, piece)
            if outcome.error is not None:  # not stored: it costs its next user some time
                self._known.discard(piece.id)
            elif record is None and busy:  # it is saved with the next step
                break
            self._offered.popleft()
            if record is not None:
                self._worker.write(record)
                room -= record.nbytes
            if busy:
                break
        now = self._clock()
        self._busy_until = now + (now - started) / SHARE

    def evicted(self, pieces: Iterable[int]) -> None:
        """Forget pieces that have left the index."""
        self._known.difference_update(pieces)

    def fetch(self, tokens: Sequence[int], cached: int) -> Fetch | None:
        """Begin to read what the disk has of a prompt, of which memory has `cached` tokens; None if
        it is not worth it.
        """
        least = cached + self._worth.reading
        if len(tokens) <= least or self._worker.state.off is not None:
            return None
        return self._worker.fetch(TokenChain(tokens, self._block_tokens), least)

    def clear(self) -> None:
        """Delete all prefixes on disk."""
        self._offered.clear()
        self._known.clear()
        self._worker.clear()

    def stats(self) -> DiskStats:
        state = self._worker.state
        return DiskStats(
            off=state.off or state.paused,
            pieces=state.records,
            nbytes=state.nbytes,
            max_bytes=state.max_bytes,
            hits=self.hits,
            hit_tokens=self.hit_tokens,
            written_today=state.written_today,
            damaged=state.damaged,
        )

    def _touch(self, tokens: Sequence[int], piece: int) -> None:
        now = self._clock()
        if now - self._touched.get(piece, -TOUCH_S) < TOUCH_S:
            return
        self._touched = {id: at for id, at in self._touched.items() if now - at < TOUCH_S}
        self._touched[piece] = now
        self._worker.touch(TokenChain(tokens, self._block_tokens))
