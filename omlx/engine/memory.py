"""Whether a request's cache fits into memory. Pure Python but for what it is told by `used`.

    0 ──── weights ──── caches ──── kept prefixes ──── soft 0.85 ──── hard 0.95 ──── limit
                                                            └ what passes need besides ┘

Over the soft limit kept prefixes go first; then requests wait until others have ended; a request for which there is
no room even so is refused. A prompt that could not be read if nothing else were there is refused at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from omlx.engine.prefix.piece import Layout
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
    ADMIT = "admit"
    WAIT = "wait"
    REFUSE = "refuse"


@dataclass(slots=True)
class MemoryGuard:
    """`limit` bytes are what the process may take, None for no limit; it may change at any time. `used` tells what it
    takes now; `weights` is what stays when nothing runs."""

    limit: int | None = None
    used: Callable[[], int] = lambda: 0
    weights: int = 0

    def need(self, request: Request, layout: Layout) -> int:
        """Bytes of the cache of a request, to the end of its prompt and some way into its answer."""
        tokens = len(request.tokens) + min(STEP, request.max_tokens or STEP)
        return layout.cache_bytes(-(-tokens // STEP) * STEP)

    def judge(self, request: Request, layout: Layout) -> None:
        """Raise BadRequest for a prompt that can never fit, saying how long one may be."""
        if self.limit is None or not layout.row_bytes or len(request.tokens) <= SMALL:
            return
        room = int(HARD * self.limit) - self.weights
        if self.need(request, layout) > room:
            most = max(SMALL, (room - layout.cache_bytes(0)) // layout.row_bytes - STEP)
            raise BadRequest(
                "memory.never", param="messages", tokens=len(request.tokens), most=most, limit=_megabytes(self.limit)
            )

    def over(self, need: int, coming: int, freed: int = 0) -> int:
        """By how many bytes the soft limit would be passed. `coming` is what running requests will take beyond what
        they hold now, `freed` what is about to be given back."""
        if self.limit is None:
            return 0
        return max(0, self._taken() - freed + coming + need - int(SOFT * self.limit))

    def room(self, coming: int, freed: int = 0) -> int | None:
        """How many bytes of prefixes may be kept besides, less than 0 where some should go; None for any number.

        What is `freed` is so only after the copy: until then both are there, and the hard limit holds.
        """
        if self.limit is None:
            return None
        taken = self._taken()
        return min(int(SOFT * self.limit) - (taken - freed + coming), int(HARD * self.limit) - taken)

    def verdict(self, request: Request, over: int, *, idle: bool) -> Verdict:
        """What becomes of a request that passes the soft limit by `over` bytes with nothing left to evict.

        `idle` says that nothing runs, so that waiting would be in vain.
        """
        if not over or self.limit is None:
            return Verdict.ADMIT
        if not idle:
            return Verdict.WAIT
        fits = over <= int(HARD * self.limit) - int(SOFT * self.limit)
        return Verdict.ADMIT if fits or len(request.tokens) <= SMALL else Verdict.REFUSE

    def refusal(self, need: int) -> Overloaded:
        """What a refused request is told."""
        used, limit = _megabytes(self.used()), _megabytes(self.limit or 0)
        return Overloaded("memory.full", retry_after_s=RETRY_AFTER_S, need=_megabytes(need), used=used, limit=limit)

    def _taken(self) -> int:
        return max(self.used(), self.weights)


def _megabytes(n: int) -> int:
    return round(n / (1 << 20))
