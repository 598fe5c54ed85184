"""Prefixes on disk as the engine thread sees them: which are written and read, and when.

    saved or hit ─► offer ─► pump, some pieces a step ─► DiskWorker
    a new row    ─► begin ─► take, some bytes a step  ─► the row's cache

While rows run, pieces are turned into bytes for at most `SHARE` of the time; the rest follows when
the model is idle. One worker serves each fingerprint that is in use.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeAlias

from omlx.engine.device_errors import isolate
from omlx.engine.disk.folder import DiskBudget, Fingerprint, remove_unused
from omlx.engine.disk.record import Record, RecordId, Run, TokenChain
from omlx.engine.disk.worker import DiskWorker, Fetch
from omlx.engine.piece import Layout, Piece
from omlx.errors import Reason
from omlx.records import DiskStats

SHARE: Final = 0.005
"""The thread of the disk then takes a few times as long, on another core."""

IDLE_BYTES: Final = 8 << 20
"""Bytes to hand over in one step without running rows: rows of other models wait meanwhile."""

LOAD_BYTES: Final = 32 << 20
"""Bytes from disk that one step takes. To copy them takes some 10 ms, less than a chunk of a prompt
that is read beside decoding rows.
"""

LOOKUP_S: Final = 0.005
"""Seconds for the disk to find a prefix — longest wait of the engine thread; mostly a millisecond.
Without an answer a row is started behind the next step, perhaps of a batch."""

TOUCH_S: Final = 600.0
"""Seconds between two marks on disk that a prefix is in use, while it is hit in memory."""


@dataclass(frozen=True, slots=True)
class DiskThresholds:
    """Thresholds in tokens. `min_write_tokens`: shortest prefix written without a hit.
    `min_gain_tokens`: least that a prefix on disk adds to the one in memory.
    """

    min_write_tokens: int = 512
    min_gain_tokens: int = 128


Disk: TypeAlias = "DiskTier | Reason | None"
"""A store of prefixes on disk, or the reason for none."""

Dump: TypeAlias = Callable[[RecordId, Piece], Record | None]
"""Returns the arrays of a piece as bytes; None if they are not there yet."""


@dataclass(eq=False)
class DiskTier:
    """The disk below one prefix index, whose blocks have `block_tokens`. `close` gives it back.

    `dump` is set by the owner of the arrays before the first prefix is offered.
    """

    worker: DiskWorker
    _block_tokens: int
    _thresholds: DiskThresholds
    close: Callable[[], None]
    dump: Dump = field(init=False)
    hits: int = 0
    hit_tokens: int = 0
    _offered: deque[tuple[TokenChain, Piece]] = field(default_factory=deque)
    _known: set[int] = field(default_factory=set)
    _touched: dict[int, float] = field(default_factory=dict)
    _fetches: dict[int, Fetch] = field(default_factory=dict)  # by row
    _busy_until: float = 0.0  # seconds; rows that run are not held up before

    @property
    def can_pump(self) -> bool:
        return bool(self._offered) and self.worker.has_room

    def hand_over(self, seconds: float) -> None:
        """Hand over all offered pieces, for about `seconds`."""
        until, before = time.monotonic() + seconds, -1
        while len(self._offered) != before and self.worker.wait_for_room(until - time.monotonic()):
            before = len(self._offered)
            self.pump(busy=False)

    def offer(self, tokens: Sequence[int], pieces: Sequence[Piece], *, hit: bool = False) -> None:
        """Have pieces of `tokens` written, where there are enough tokens."""
        if len(tokens) < (self._block_tokens if hit else self._thresholds.min_write_tokens):
            return
        new = [piece for piece in pieces if piece.id not in self._known]
        if not new:
            self._touch(tokens, pieces[-1].id)
            return
        chain = TokenChain(tokens, self._block_tokens)
        self._offered += [(chain, piece) for piece in new]
        self._known.update(piece.id for piece in new)

    def count_hit(self, tokens: int) -> None:
        """Count a prefix of `tokens` tokens that came from disk."""
        self.hits += 1
        self.hit_tokens += tokens

    def mark_stored(self, pieces: Iterable[Piece]) -> None:
        """Note pieces that came from disk: they are not written again."""
        self._known.update(piece.id for piece in pieces)

    def pump(self, *, busy: bool) -> None:
        """Hand over offered pieces: one at a time while rows run (`busy`)."""
        room, started = IDLE_BYTES, time.monotonic()
        if busy and started < self._busy_until:
            return
        while self.can_pump and room > 0:
            chain, piece = self._offered[0]
            if piece.id not in self._known:  # evicted meanwhile
                self._offered.popleft()
                continue
            id = chain.record(piece.kind, piece.start, piece.stop)
            record = None
            with isolate() as outcome:
                record = self.dump(id, piece)
            if outcome.error is not None:  # not stored: computed again when needed
                self._known.discard(piece.id)
            elif record is None and busy:  # the next step saves the piece
                break
            self._offered.popleft()
            if record is not None:
                self.worker.write(record)
                room -= record.nbytes
            if busy:
                break
        now = time.monotonic()
        self._busy_until = now + (now - started) / SHARE

    def drain(self) -> bool:
        """Hand over an offered piece at once, also while rows run. Return whether some are left."""
        self._busy_until = 0.0
        self.pump(busy=True)
        return bool(self._offered)

    def evicted(self, pieces: Iterable[int]) -> None:
        """Forget pieces that have left the index."""
        self._known.difference_update(pieces)

    def begin(self, row: int, tokens: Sequence[int], cached: int) -> bool:
        """Begin to read more of a row's prompt than memory has, `cached` tokens. Return False where
        the disk cannot gain enough. The row is given back by `drop`, or when all was taken.
        """
        least = cached + self._thresholds.min_gain_tokens
        if len(tokens) <= least or self.worker.state.off is not None:
            return False
        fetch = self.worker.fetch(TokenChain(tokens, self._block_tokens), least)
        if fetch.wait(LOOKUP_S) and fetch.ended and not fetch.length:
            return False  # at once: else the row waits for a step of others
        self._fetches[row] = fetch
        return True

    def ready(self, row: int) -> bool:
        """Whether `take` has something."""
        return row in self._fetches and self._fetches[row].ready

    def take(self, row: int, nbytes: int) -> tuple[list[Run], int | None]:
        """Return the next runs, and the prefix's length with the last ones; else None."""
        fetch = self._fetches[row]
        runs = fetch.take(nbytes)
        if not fetch.ended:
            return runs, None
        del self._fetches[row]
        return runs, fetch.length

    def drop(self, row: int) -> None:
        fetch = self._fetches.pop(row, None)
        if fetch is not None:
            fetch.cancel()

    def clear(self) -> None:
        self._offered.clear()
        self._known.clear()
        self.worker.clear()

    def stats(self) -> DiskStats:
        hits, tokens = self.hits, self.hit_tokens
        return replace(self.worker.state, off=self.worker.off, hits=hits, hit_tokens=tokens)

    def _touch(self, tokens: Sequence[int], piece: int) -> None:
        now = time.monotonic()
        if now - self._touched.get(piece, -TOUCH_S) < TOUCH_S:
            return
        self._touched = {id: at for id, at in self._touched.items() if now - at < TOUCH_S}
        self._touched[piece] = now
        self.worker.touch(TokenChain(tokens, self._block_tokens))


HAND_OVER_S: Final = 2.0
WRITE_S: Final = 3.0
"""Seconds that the end of the server may wait, for each model."""


@dataclass(eq=False)
class DiskCache:
    """Opens and closes tiers in folders below `root`. `wake` has the engine thread look again.

    Only the engine thread may call, except for `join` and `remove`.
    """

    root: Path
    budget: DiskBudget
    wake: Callable[[], None]
    thresholds: DiskThresholds = field(default_factory=DiskThresholds)
    _workers: dict[str, DiskWorker] = field(default_factory=dict)
    _users: dict[str, int] = field(default_factory=dict)
    _tiers: list[DiskTier] = field(default_factory=list)

    def open(self, fingerprint: Fingerprint, layout: Layout, block_tokens: int) -> DiskTier:
        """Return a tier of its own; tiers of one fingerprint share a worker."""
        name = fingerprint.name
        if not self._users.get(name):
            key, after = (self.root, fingerprint, layout, block_tokens), self._workers.get(name)
            self._workers[name] = DiskWorker(*key, self.budget, self.wake, after)
        self._users[name] = self._users.get(name, 0) + 1

        def close() -> None:
            self._tiers.remove(tier)
            self._users[name] -= 1
            if not self._users[name]:
                self._workers[name].close()

        tier = DiskTier(self._workers[name], block_tokens, self.thresholds, close)
        self._tiers.append(tier)
        return tier

    def close(self) -> None:
        """Hand over what waits to be written, and close every tier."""
        for tier in [*self._tiers]:
            tier.hand_over(HAND_OVER_S)
            tier.close()

    def join(self, seconds: float = math.inf) -> None:
        """Wait at most `seconds` until all that was handed over is written. Requires that the
        engine thread has ended, even if it died or hung before it could close the tiers. Any thread
        may call.
        """
        until = time.monotonic() + seconds
        for worker in self._workers.values():
            worker.close()
        for worker in self._workers.values():
            worker.join(max(0.0, min(WRITE_S, until - time.monotonic())))

    def remove(self, model: str) -> None:
        """Delete the prefixes of a model that no process has loaded. Any thread may call."""
        remove_unused(self.root, model)
