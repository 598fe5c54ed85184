"""Who gets in when memory is short: one guard for all loaded models. Pure Python but for what it is told by `used`.

    0 ──── weights ──── caches ──── kept prefixes ──── soft 0.85 ──── hard 0.95 ──── limit
                                                            └ what passes need besides ┘

Over the soft limit kept prefixes go first, those of the model that was used longest ago before others; then idle
models go, for which whoever loads them is asked; then requests wait until others have ended, first come first served.
A request for which there is no room even so is refused. A prompt that could not be read if nothing else were there is
refused at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from omlx.engine.piece import Layout
from omlx.engine.types import Request
from omlx.errors import BadRequest, Overloaded

SOFT: Final = 0.85
HARD: Final = 0.95
STEP: Final = 256
"""What caches grow by, in tokens: so many of the answer are counted in."""

SMALL: Final = 2 * STEP
"""A prompt of so few tokens is never what is too much."""

RETRY_AFTER_S: Final = 5


class Verdict(StrEnum):
    """`WAIT` until something changes, `RETRY` with the next step: memory is about to be given back."""

    ADMIT = "admit"
    WAIT = "wait"
    RETRY = "again"
    REFUSE = "refuse"


class MemoryClient(Protocol):
    """A loaded model, as the guard sees it. Times are those of one monotonic clock, in seconds."""

    @property
    def used_at(self) -> float:
        """When it was last asked for something."""
        ...

    @property
    def reserved(self) -> int:
        """Bytes that will be taken beyond what is: by caches of running requests, and by what is about to be kept."""
        ...

    @property
    def cached(self) -> int:
        """Bytes of prefixes that could go."""
        ...

    @property
    def busy(self) -> bool:
        """Whether requests run."""
        ...

    @property
    def freeing(self) -> bool:
        """Whether something waits for its next step that may give memory back."""
        ...

    @property
    def blocked_since(self) -> float | None:
        """When the request came that waits for memory; None if none does."""
        ...

    def evict_prefixes(self, nbytes: int) -> int:
        """Have `nbytes` of kept prefixes go with the next step, or all. Returns how many bytes that gives back."""
        ...


@dataclass(slots=True)
class MemoryGuard:
    """`limit` bytes are what the process may take, None for no limit; it may change at any time. `used` tells what it
    takes now. `weights` are those of all loaded models, `loading` those that are yet to be read.

    `request_eviction` is asked, on the engine thread, to send idle models away for so many bytes, and answers by `eviction_done`.
    """

    limit: int | None = None
    used: Callable[[], int] = lambda: 0
    weights: int = 0
    loading: int = 0
    request_eviction: Callable[[int], None] | None = None
    clients: list[MemoryClient] = field(default_factory=list)
    version: int = 0
    _asked: bool = False
    _evicted_at: int = -1

    @property
    def soft(self) -> int:
        """Bytes."""
        return int(SOFT * (self.limit or 0))

    @property
    def hard(self) -> int:
        """Bytes."""
        return int(HARD * (self.limit or 0))

    # -- who is there --------------------------------------------------------------------------------------------

    def join(self, client: MemoryClient) -> None:
        self.clients.append(client)

    def leave(self, client: MemoryClient) -> None:
        self.clients = [each for each in self.clients if each is not client]
        self.changed()

    def changed(self) -> None:
        """Memory was given back, or may be had otherwise: those who wait may try again."""
        self.version += 1

    def eviction_done(self) -> None:
        """Whatever idle models could be sent away have gone."""
        self._asked = False
        self.changed()
        self._evicted_at = self.version

    def shrink(self, nbytes: int) -> int:
        """Have kept prefixes go, whosever they are. Returns how many bytes that gives back, with their next steps."""
        return _shrink(self.clients, nbytes)

    @property
    def freeing(self) -> bool:
        return any(each.freeing for each in self.clients)

    # -- judging -------------------------------------------------------------------------------------------------

    def check_fits(
        self, request: Request, layout: Layout, pinned_weights: int | None = None
    ) -> None:
        """Raise BadRequest for a prompt that can never fit, saying how long one may be.

        `pinned_weights` are bytes of weights that stay whichever models are sent away; None means all of them.
        """
        if self.limit is None or not layout.row_bytes or len(request.tokens) <= SMALL:
            return
        room = self.hard - (self.weights if pinned_weights is None else pinned_weights)
        if cache_need(request, layout) > room:
            most = max(SMALL, (room - layout.cache_bytes(0)) // layout.row_bytes - STEP)
            raise BadRequest(
                "memory.never",
                param="messages",
                tokens=len(request.tokens),
                most=most,
                limit=_megabytes(self.limit),
            )

    def admit(self, who: MemoryClient, request: Request, need: int, since: float) -> Verdict:
        """What becomes of the first request in the queue of `who`, which came at `since` and needs `need` bytes.

        Kept prefixes may be told to go for it, and `request_eviction` be asked.
        """
        if self.limit is None:
            return Verdict.ADMIT
        others = [each for each in self.clients if each is not who]
        everyone = [*others, who]
        if any(each.blocked_since is not None and each.blocked_since < since for each in others):
            return Verdict.WAIT
        over = self.over(need, everyone)
        if over and any(each.freeing for each in everyone):
            return (
                Verdict.RETRY
            )  # what has ended is about to give its memory back: nothing need go for that
        busy = any(each.busy for each in everyone)
        theirs = 0
        if over <= sum(each.cached for each in everyone) or not busy:
            theirs = _shrink(others, over)
            ours = who.evict_prefixes(over - theirs) if over > theirs else 0
            over = self.over(need, everyone, theirs + ours)
        if not over:
            return Verdict.RETRY if theirs else Verdict.ADMIT
        if self._asks(over) or busy:
            return Verdict.WAIT
        if any(each.freeing for each in everyone):
            return Verdict.RETRY
        return self.verdict(request, over, idle=True)

    def over(self, need: int, clients: Iterable[MemoryClient], freed: int = 0) -> int:
        """By how many bytes the soft limit would be passed; `freed` is what is about to be given back."""
        if self.limit is None:
            return 0
        return max(0, self._taken() - freed + self._reserved(clients) + need - self.soft)

    def headroom(self, freed: int = 0) -> int | None:
        """How many bytes of prefixes may be kept besides, less than 0 where some should go; None for any number.

        What is `freed` is so only after the copy: until then both are there, and the hard limit holds.
        """
        if self.limit is None:
            return None
        return min(
            self.soft - (self._taken() - freed + self._reserved(self.clients)),
            self.hard - self._taken(),
        )

    def reserve(self, need: int, *, last: bool = False) -> int:
        """Set `need` bytes aside for weights that are to be read, in place of what was set aside before.

        Returns by how many bytes that passes the soft limit, or, where this is the `last` try, the hard one; if it
        does, nothing is set aside.
        """
        self.loading = 0
        over = self.over(need, self.clients)
        over = max(0, over - (self.hard - self.soft)) if last else over
        self.loading = 0 if over else need
        return over

    def verdict(self, request: Request, over: int, *, idle: bool) -> Verdict:
        """What becomes of a request that passes the soft limit by `over` bytes with nothing left to evict.

        `idle` says that nothing runs, so that waiting would be in vain.
        """
        if not over or self.limit is None:
            return Verdict.ADMIT
        if not idle:
            return Verdict.WAIT
        fits = over <= self.hard - self.soft
        return Verdict.ADMIT if fits or len(request.tokens) <= SMALL else Verdict.REFUSE

    def refusal(self, need: int) -> Overloaded:
        """What a refused request is told."""
        used, limit = _megabytes(self.used()), _megabytes(self.limit or 0)
        return Overloaded(
            "memory.full",
            retry_after_s=RETRY_AFTER_S,
            need=_megabytes(need),
            used=used,
            limit=limit,
        )

    def _taken(self) -> int:
        return max(self.used(), self.weights)

    def _reserved(self, clients: Iterable[MemoryClient]) -> int:
        return self.loading + sum(each.reserved for each in clients)

    def _asks(self, over: int) -> bool:
        """Whether idle models may still go. Asks for it, unless nothing has changed since none could."""
        if self.request_eviction is None or self._evicted_at == self.version:
            return self._asked
        if not self._asked:
            self._asked = True
            self.request_eviction(over)
        return self._asked


def cache_need(request: Request, layout: Layout) -> int:
    """Bytes of the cache of a request, to the end of its prompt and some way into its answer."""
    tokens = len(request.tokens) + min(STEP, request.max_tokens or STEP)
    return layout.cache_bytes(-(-tokens // STEP) * STEP)


def _shrink(clients: Iterable[MemoryClient], nbytes: int) -> int:
    """The one that was used longest ago first."""
    given = 0
    for each in sorted(clients, key=lambda client: client.used_at):
        if given < nbytes:
            given += each.evict_prefixes(nbytes - given)
    return given


def _megabytes(n: int) -> int:
    return round(n / (1 << 20))
