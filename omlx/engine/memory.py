"""Memory budget: one limit shared by all loaded models. Pure Python.

    0 ── weights ── KV caches ── prefix caches ── soft 85 % ── passes 90 % ── hard 95 % ── limit
                                                      └─ activations ─┘

Activations are those of the shortest pass over a prompt; passes are as long as memory allows (see
omlx.engine.step.prefill). Where a request would exceed the soft limit: evict cached prefixes, other
models' first, if that suffices or nothing runs; then have idle models evicted; then let it wait for
running requests, in order of arrival. With nothing to wait for, admit it below the hard limit and
refuse it above.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol, TypeAlias

from omlx.engine.piece import Layout
from omlx.engine.types import Request
from omlx.errors import BadRequest, Overloaded

SOFT: Final = 0.85
PASSES: Final = 0.9
HARD: Final = 0.95
"""Fractions of the limit: caches, with activations, with copies. The rest covers estimates."""

CACHE_STEP: Final = 256
"""Tokens by which mlx-lm's caches grow; as many tokens of output are reserved with the prompt."""

SMALL: Final = 2 * CACHE_STEP
"""Tokens of a prompt up to which it is never refused for memory."""

RETRY_AFTER_S: Final = 5

MinActivations: TypeAlias = Callable[[int], int]
"""Returns the bytes of the shortest pass over a text, by its length in tokens."""


class Verdict(StrEnum):
    """Verdict on the request at the head of a queue.

    `NEXT_STEP`: judge it again with the next step, which frees memory. `WAIT_FOR_CHANGE`: judge it
    again when the guard's `version` has changed.
    """

    ADMIT = "admit"
    NEXT_STEP = "next step"
    WAIT_FOR_CHANGE = "wait for change"
    REFUSE = "refuse"


class MemoryClient(Protocol):
    """A loaded model, as the guard sees it. Times are of one monotonic clock, in seconds."""

    @property
    def used_at(self) -> float:
        """Submission of its newest request."""

    @property
    def reserved(self) -> int:
        """Bytes not yet allocated: prefixes to be saved, and growth of running KV caches up to the
        prompt and some output tokens. Later growth is left to the space above the limits.
        """

    @property
    def activations(self) -> int:
        """Bytes of the shortest pass over any prompt being read."""

    @property
    def cached(self) -> int:
        """Bytes of cached prefixes, all of which can be evicted."""

    @property
    def busy(self) -> bool:
        """Whether requests run."""

    @property
    def freeing(self) -> bool:
        """Whether its next step may free memory."""

    @property
    def blocked_since(self) -> float | None:
        """When its first request that waits for memory was submitted; None if none does."""

    def evict_prefixes(self, nbytes: int) -> int:
        """Evict `nbytes` of cached prefixes, or all, with the next step. Return how many bytes."""


@dataclass(slots=True)
class MemoryGuard:
    """Decides on admissions, prefix cache growth and model loads. All counts are bytes.

    `limit` bounds the process, None: no limit. `used` returns its bytes now, `own` those of them
    that are no arrays of models. `weights` are those of all loaded models, `loading` is reserved
    for weights being read. `trim` returns freed memory, which may still be counted as used, to the
    system. `request_eviction` asks the model pool to evict idle models of so many bytes; the pool
    answers by `eviction_done`. `version` changes when waiting requests are to be judged again. Only
    one thread, the engine's, may call what modifies the guard; any thread may read the limits.
    """

    limit: int | None = None
    used: Callable[[], int] = lambda: 0
    weights: int = 0
    loading: int = 0
    own: Callable[[], int] = lambda: 0
    trim: Callable[[], None] = lambda: None
    request_eviction: Callable[[int], None] | None = None
    clients: list[MemoryClient] = field(default_factory=list)
    version: int = 0
    _evicting: bool = False
    # The version at the end of the last eviction of models: until it changes, request no other.
    _evicted_version: int = -1
    _writer: int | None = None

    @property
    def soft(self) -> int:
        return int(SOFT * (self.limit or 0))

    @property
    def hard(self) -> int:
        return int(HARD * (self.limit or 0))

    @property
    def freeing(self) -> bool:
        """Whether the next step of any model may free memory."""
        return any(client.freeing for client in self.clients)

    def join(self, client: MemoryClient) -> None:
        self._assert_writer()
        self.clients.append(client)

    def leave(self, client: MemoryClient) -> None:
        self.clients = [other for other in self.clients if other is not client]
        self.changed()

    def configure(self, limit: int | None, weights: int) -> None:
        self.limit, self.weights = limit, weights
        self.changed()

    def set_model_evictor(self, request_eviction: Callable[[int], None]) -> None:
        self._assert_writer()
        self.request_eviction = request_eviction

    def changed(self) -> None:
        """Have waiting requests judged again: memory was freed, or the first in line gave up."""
        self._assert_writer()
        self.version += 1

    def eviction_done(self) -> None:
        self._evicting = False
        self.changed()
        self._evicted_version = self.version

    def evict_prefixes(self, nbytes: int) -> int:
        """Evict cached prefixes of any model, least recently used models first. Return how many
        bytes the next steps will free."""
        self._assert_writer()
        return _evict_prefixes(self.clients, nbytes)

    def admit(
        self, client: MemoryClient, request: Request, need: int, since: float, activations: int = 0
    ) -> Verdict:
        """Judge the head of a client's queue, which needs `need` bytes, `activations` while it is
        read, and was submitted at `since`.

        May evict cached prefixes and request the eviction of idle models.
        """
        self._assert_writer()
        if self.limit is None:
            return Verdict.ADMIT
        others = [other for other in self.clients if other is not client]
        if any(o.blocked_since is not None and o.blocked_since < since for o in others):
            return Verdict.WAIT_FOR_CHANGE
        everyone = [*others, client]
        activations = max(activations, *(member.activations for member in everyone))
        excess = self.excess(need, everyone, activations=activations)
        if excess and any(member.freeing for member in everyone):
            return Verdict.NEXT_STEP  # evict nothing for memory that the next step frees
        busy = any(member.busy for member in everyone)
        freed_by_others = 0
        # Evict prefixes only if that is enough, or if no running request can free the rest: those
        # of other models first, least recently used model first, the client's own last.
        if excess <= sum(member.cached for member in everyone) or not busy:
            freed = freed_by_others = _evict_prefixes(others, excess)
            if freed < excess:
                freed += client.evict_prefixes(excess - freed)
            excess = self.excess(need, everyone, freed, activations)
        if not excess:
            # The client's own evictions precede the new row in the next plan; others' do not.
            return Verdict.NEXT_STEP if freed_by_others else Verdict.ADMIT
        if self._request_model_eviction(excess) or busy:
            return Verdict.WAIT_FOR_CHANGE
        if any(member.freeing for member in everyone):
            return Verdict.NEXT_STEP
        if excess <= self._above_soft(activations) or len(request.tokens) <= SMALL:
            return Verdict.ADMIT
        return Verdict.REFUSE

    def admit_text(
        self, tokens: int, layout: Layout, activations: MinActivations = lambda context: 0
    ) -> bool:
        """Return whether a text that is no request may be read now; if not, judge it again after
        the next step, which frees memory.

        `activations` are those of its shortest pass, by its length. May evict cached prefixes.
        Raises Overloaded where that is not enough, BadRequest for a text that never fits.
        """
        self._assert_writer()
        _check_length(self, tokens, "input", layout, activations, self.weights)
        need, transient = layout.cache_bytes(stepped(tokens)), activations(tokens)
        excess = self.excess(need, self.clients, activations=transient)
        if not excess:
            return True
        if self.freeing or self.evict_prefixes(excess):
            return False
        if excess <= self._above_soft(transient) or tokens <= SMALL:
            return True
        raise self.refusal(need + transient)

    def excess(
        self, need: int, clients: Iterable[MemoryClient], freed: int = 0, activations: int = 0
    ) -> int:
        """Bytes above the soft limit, or that of passes, with `need` more and `freed` fewer."""
        if self.limit is None:
            return 0
        wanted = self._reserved(clients) + need - freed - self._soft_with(activations)
        excess = self._taken() + wanted
        if excess > 0:
            self.trim()
            excess = self._taken() + wanted
        return max(0, excess)

    def pass_room(self, wanted: int) -> int | None:
        """Return the bytes that the activations of a pass may take now; None: no limit.

        Returns freed memory to the system first if fewer than `wanted` are left. What is taken and
        reserved above the soft limit is made up for by cached prefixes, with the next steps.
        """
        if self.limit is None:
            return None
        passes, reserved = int(PASSES * self.limit), self._reserved(self.clients)
        total = self._taken() + reserved
        if total > min(self.soft, passes - wanted):
            self.trim()
            total = self._taken() + reserved
        if total > self.soft and not self.freeing:
            self.evict_prefixes(total - self.soft)
        return passes - total

    def headroom(self, freed: int = 0, copied: int = 0) -> int | None:
        """By how many bytes the prefix caches may grow, or, if negative, must shrink; None: no
        limit.

        `freed` bytes are those of an ended row. They are given back only after the row's cache has
        been copied into the prefix cache, and after `copied` bytes of other caches; until then all
        exist, below the hard limit.
        """
        if self.limit is None:
            return None
        taken = self._taken()
        soft = self.soft - (taken - freed + self._reserved(self.clients))
        return min(soft, self.hard - taken - copied)

    def copy_room(self, copied: int) -> int | None:
        """Bytes that a step may copy beside `copied` others; None: no limit."""
        return None if self.limit is None else self.hard - self._taken() - copied

    def reserve(self, need: int, *, last: bool = False) -> int:
        """Reserve `need` bytes for weights to be read, in place of the reservation before.

        Return by how many bytes that exceeds the soft limit, in the `last` attempt the hard limit.
        Reserve nothing if it does.
        """
        self._assert_writer()
        self.loading = 0
        excess = self.excess(need, self.clients)
        if last:
            excess = max(0, excess - (self.hard - self.soft))
        if not excess:
            self.loading = need
        return excess

    def use_reservation(self, nbytes: int) -> None:
        """Weights of `nbytes` were read: `used` counts them now."""
        self._assert_writer()
        self.loading = max(0, self.loading - nbytes)

    def cancel_reservation(self) -> None:
        if self.loading:
            self.loading = 0
            self.changed()

    def refusal(self, need: int) -> Overloaded:
        return Overloaded(
            "memory.full",
            retry_after_s=RETRY_AFTER_S,
            need=_mebibytes(need),
            used=_mebibytes(self.used()),
            limit=_mebibytes(self.limit or 0),
        )

    def _above_soft(self, activations: int) -> int:
        return self.hard - activations - self._soft_with(activations)

    def _soft_with(self, activations: int) -> int:
        return min(self.soft, int(PASSES * (self.limit or 0)) - activations)

    def _taken(self) -> int:
        return max(self.used(), self.weights)  # mapped weights count although no pass has read them

    def _reserved(self, clients: Iterable[MemoryClient]) -> int:
        return self.loading + sum(client.reserved for client in clients)

    def _request_model_eviction(self, nbytes: int) -> bool:
        """Request the eviction of idle models, unless nothing changed since the last one ended.

        Return whether an eviction is in progress.
        """
        if self.request_eviction is None or self._evicted_version == self.version:
            return self._evicting
        if not self._evicting:
            self._evicting = True
            self.request_eviction(nbytes)
        return self._evicting

    def _assert_writer(self) -> None:
        thread = threading.get_ident()
        if self._writer is None:
            self._writer = thread
        assert self._writer == thread, "the memory guard has one writing thread"


def output_tokens(request: Request) -> int:
    return min(CACHE_STEP, request.max_tokens or CACHE_STEP)


def stepped(tokens: int) -> int:
    return -(-tokens // CACHE_STEP) * CACHE_STEP


def check_fits(
    memory: MemoryGuard,
    request: Request,
    layout: Layout,
    pinned_weights: int | None = None,
    activations: MinActivations = lambda context: 0,
) -> None:
    """Raise BadRequest, with the longest possible prompt, if a prompt cannot fit even with nothing
    else running.

    `pinned_weights` are the bytes of weights that stay loaded whichever models are evicted; None:
    all weights. `activations` are those of the shortest pass, by context.
    """
    weights = memory.weights if pinned_weights is None else pinned_weights
    length, output = len(request.tokens), output_tokens(request)
    _check_length(memory, length, "messages", layout, activations, weights, output)


def _check_length(
    memory: MemoryGuard,
    tokens: int,
    param: str,
    layout: Layout,
    activations: MinActivations,
    weights: int,
    output: int = 0,
) -> None:
    """Raise BadRequest, with the longest text that fits beside `weights`, if `tokens` do not."""
    fixed = weights + memory.own()

    def too_long(length: int) -> bool:
        need = layout.cache_bytes(stepped(length + output))
        return fixed + need > memory.hard - activations(length)

    if memory.limit is not None and tokens > SMALL and too_long(tokens):
        most = SMALL + bisect_left(range(SMALL + 1, tokens), True, key=too_long)
        limit = _mebibytes(memory.limit)
        raise BadRequest("memory.never", param=param, tokens=tokens, most=most, limit=limit)


def _evict_prefixes(clients: Iterable[MemoryClient], nbytes: int) -> int:
    freed = 0
    for client in sorted(clients, key=lambda client: client.used_at):
        if freed < nbytes:
            freed += client.evict_prefixes(nbytes - freed)
    return freed


def _mebibytes(nbytes: int) -> int:
    return round(nbytes / (1 << 20))
