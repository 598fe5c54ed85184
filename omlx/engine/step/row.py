"""Rows, and the batch of those that share a cache. Pure Python.

A row is the one mutable record of a request. The scheduler alone writes to it.

    0 ............ computed ........... len(tokens)
    |  in the KV cache  |     pending     |  + unread (sampled on the device, not yet read)

Prefill, decode and verification are the same: `computed` catches up with `len(tokens)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Protocol

from omlx.draft_length import MAX_DRAFT_LENGTH
from omlx.engine.step.plan import CacheOp, Extract, Filter, Merge
from omlx.engine.types import Limits, Request, TokenMask
from omlx.errors import Reason
from omlx.records import DrafterStats

_FARTHEST: Final = MAX_DRAFT_LENGTH + 2
"""Tokens that one step samples at most, behind the one in flight."""


MAX_RESTARTS: Final = 8
"""Times that a request is computed again — a device that fails more often is broken."""


class Status(StrEnum):
    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    DONE = "done"


MOVES: dict[Status, frozenset[Status]] = {
    Status.WAITING: frozenset({Status.PREFILL, Status.DONE}),
    Status.PREFILL: frozenset({Status.DECODE, Status.DONE}),
    Status.DECODE: frozenset({Status.DONE}),
    Status.DONE: frozenset(),
}


@dataclass(slots=True)
class Clock:
    """Monotonic times in seconds; 0 means not yet."""

    submitted: float
    admitted: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0

    def tick(self, now: float) -> bool:
        """Record that tokens were committed. Return whether they are the first ones."""
        first = not self.first_token
        if first:
            self.first_token = now
        self.last_token = now
        return first


@dataclass(frozen=True, slots=True)
class Interval:
    """Seconds between two reads, and the pass in between: `rows` of `width` tokens each.

    `width` is 0 for plain steps that overlap: each was read after the next one was launched.
    `plain_s` estimates a plain step of a batch; None for a single row, which estimates its own.
    """

    seconds: float
    width: int = 0
    rows: int = 1
    plain_s: float | None = None


@dataclass(slots=True)
class Row:
    """A request with its tokens so far, prompt included. `id` is a running number.

    `end` is the length at which it is full: prompt plus max_tokens, bounded by the context.
    Behind computed tokens, up to `tail` pending ones are read by the first decode window.
    `computed` counts the tokens that the target's KV cache holds once every launched step has run,
    `cached` those of the prompt that came from the prefix cache. `unread` counts sampled tokens in
    flight, `unverified` draft tokens in flight. While it is `restoring`, its prefix is read from
    disk, and it reads nothing; `fetched` says that it has waited for that. `restarts` counts how
    often its tokens were computed again after a failure of the device, the last time when it had
    `restarted_at` tokens; `cold`: without a cached prefix.

    `waiting_since` is the start of the newest wait, `admitted_at` its end; until `kept_until` the
    row gives way to no other request. `displaced` counts how often it gave way, `earlier` has the
    statistics of drafters before that. `finish_tag` orders prompts. Until the model has read
    `joint_until` tokens of prompts, the row pauses for those that came before its first token (see
    priority.py).
    """

    id: int
    request: Request
    tokens: list[int]
    end: int
    clock: Clock
    status: Status = Status.WAITING
    tail: int = 1
    computed: int = 0
    cached: int = 0
    unread: int = 0
    unverified: int = 0
    restoring: bool = False
    fetched: bool = False
    restarts: int = 0
    restarted_at: int = 0
    cold: bool = False
    waiting_since: float = 0.0
    admitted_at: float = 0.0
    kept_until: float = 0.0
    displaced: int = 0
    earlier: dict[str, DrafterStats] = field(default_factory=dict)
    finish_tag: float = 0.0
    joint_until: int = 0

    @property
    def prompt_len(self) -> int:
        return len(self.request.tokens)

    @property
    def pending(self) -> int:
        """Tokens that the next window must read, the unread one included."""
        return len(self.tokens) + self.unread + self.unverified - self.computed

    @property
    def may_restart(self) -> bool:
        """Whether the tokens may be computed again: `MAX_RESTARTS` times at most, and only if one
        has come since the last time.

        Scores of a prompt are sent as they are computed, so they are not computed twice.
        """
        came_on = not self.restarts or len(self.tokens) > self.restarted_at
        return came_on and self.restarts < MAX_RESTARTS and self.request.prompt_logprobs is None

    def admit(self, now: float, kept_s: float) -> None:
        """End the wait, and give way to no other request for `kept_s`."""
        self.admitted_at, self.kept_until = now, now + kept_s

    @property
    def may_give_way(self) -> bool:
        """Whether another request may take the row. Scores of a prompt are not sent twice."""
        return self.request.prompt_logprobs is None

    @property
    def remaining(self) -> int:
        """Tokens that may still be sampled."""
        return self.end - len(self.tokens) - self.unread

    @property
    def prefill_done(self) -> bool:
        """Whether its prompt is in the cache but for the last token, and nothing is generated."""
        computed = self.status is Status.PREFILL and not self.restoring and self.pending == 1
        return computed and self.request.prefill_only

    @property
    def mask(self) -> TokenMask | None:
        """The token mask, if it may constrain a token of the next step or of its draft."""
        mask = self.request.mask
        if mask is None or mask.free > _FARTHEST:
            return None
        return mask

    def move(self, status: Status) -> None:
        """Change the status. Raises ValueError for a transition that MOVES does not list."""
        if status not in MOVES[self.status]:
            raise ValueError(f"a {self.status} row cannot become {status}")
        self.status = status

    def start(self, cached: int, tail: int = 1, *, restoring: bool = False) -> None:
        """Prefill from a cache of `cached` tokens, or once one has come from disk."""
        self.computed, self.tail = cached, tail
        if not (self.restarts or self.displaced):
            self.cached = cached
        self.restoring = restoring
        self.fetched |= restoring
        if self.status is Status.WAITING:
            self.move(Status.PREFILL)
        self.begin_decode()

    def as_restarted(self, new_id: int, since: float, *, cold: bool) -> Row:
        """Return a row, waiting `since`, that computes the same tokens again and continues."""
        row = self._waiting(new_id, since)
        row.restarts, row.restarted_at, row.cold = self.restarts + 1, len(self.tokens), cold
        return row

    def as_displaced(self, new_id: int, since: float, earlier: dict[str, DrafterStats]) -> Row:
        """Return a row, waiting `since`, to continue behind the tokens of this displaced row."""
        row = self._waiting(new_id, since)
        row.displaced, row.earlier = self.displaced + 1, earlier
        return row

    def _waiting(self, new_id: int, since: float) -> Row:
        return replace(
            self,
            id=new_id,
            waiting_since=since,
            status=Status.WAITING,
            computed=0,
            unread=0,
            unverified=0,
            restoring=False,
            kept_until=0.0,
        )

    def begin_decode(self) -> None:
        """Decode if no more than the tail is pending and something is to be generated."""
        tail = self.tail if self.computed else 1
        if self.pending <= tail and not self.request.prefill_only:
            self.move(Status.DECODE)

    def check(self) -> None:
        """Raise AssertionError if the record contradicts itself. For tests, after every step."""
        assert self.computed >= 0, (self.id, self.computed)
        assert self.pending >= 0, (self.id, self.computed, len(self.tokens))
        assert 0 <= self.unread <= 1, (self.id, self.unread)
        assert len(self.tokens) <= self.end, (self.id, len(self.tokens), self.end)
        if self.status is Status.DECODE:
            assert self.pending >= 1, (self.id, self.pending)


LINGER_STEPS: Final = 16


class CacheSizes(Protocol):
    """Sizes of caches. `unseen`: share of their bytes in other processes, 0 but in stages."""

    unseen: float

    def row_bytes(self, row: int) -> int:
        """Bytes of a row's cache now."""
        ...


class Batch:
    """The rows that share a cache, in its order.

    Rows join when a second one decodes. A row that is left alone stays for `LINGER_STEPS`, so that
    a second row that comes and goes does not cause copies back and forth, and is then split off.

    `off_reason` says why rows of this model cannot share a cache, `no_uneven` why rows that do
    cannot read windows of different lengths, and so cannot draft; None: they can.
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
        self._alone: int | None = None  # the only row that decodes, for `_alone_steps` steps
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
        # A row with several pending tokens commits them in a window of its own first. So does a row
        # without any computed token: some recurrent layers treat the first token differently,
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
