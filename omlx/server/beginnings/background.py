"""Background prefill: prompts computed into the prefix cache after all requests."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from math import inf
from typing import Final

from omlx.engine.thread import EngineThread
from omlx.engine.types import (
    Event,
    Failed,
    Finished,
    FinishReason,
    PrefillProgress,
    Request,
)
from omlx.errors import Overloaded
from omlx.models.pool.pool import Pool

LAST: Final = 1 << 31
"""Number — priority after the requests of clients."""


class BackgroundPrefill:
    """Prefill requests below those of clients. On the event loop."""

    def __init__(self, engine: EngineThread, pool: Pool) -> None:
        self._engine = engine
        self._pool = pool

    def on_disk(self, model: str) -> bool:
        """Whether prefixes of a model are stored on disk, and with them what prompts begin with."""
        stats = self._engine.prefix_of(model)
        return stats is not None and stats.disk.off is None

    async def fill(
        self,
        model: str,
        tokens: tuple[int, ...],
        deadline: float = inf,
        *,
        beside: bool = False,
        least: int = 1,
    ) -> tuple[bool, int]:
        """Compute what the prefix cache of a leased model lacks, if `least` tokens or more.

        Any request cancels the work, or, `beside` requests, goes first.

        Return whether the work ended before `deadline`, in seconds of the event loop, and the
        number of computed tokens. Does nothing where memory has no room. Raises OmlxError.
        """
        if not tokens:
            return True, 0
        request = Request(
            id=f"prewarm-{uuid.uuid4().hex}",
            tokens=(*tokens, tokens[-1]),  # the last token of a prompt is not computed
            max_tokens=0,
            stable=len(tokens),
            background=not beside,
            priority=LAST,
        )
        if not await asyncio.wrap_future(self._engine.may_prefill(model, request, least)):
            return True, 0
        return await self._run(model, request, deadline)

    async def _run(self, model: str, request: Request, deadline: float) -> tuple[bool, int]:
        loop, events, reached = asyncio.get_running_loop(), asyncio.Queue[Event](), 0

        def receive(batch: Sequence[Event], /) -> None:
            for event in batch:
                loop.call_soon_threadsafe(events.put_nowait, event)

        self._engine.submit(model, request, receive)
        try:
            while True:
                event = await events.get()
                if isinstance(event, Failed):
                    if isinstance(event.error, Overloaded):
                        return False, 0
                    raise event.error
                if isinstance(event, PrefillProgress):
                    reached = event.done
                if isinstance(event, Finished):
                    computed = max(0, reached - event.stats.cached_n)
                    return event.reason is FinishReason.LENGTH, computed
                given_up = request.background and not self._alone()
                if given_up or loop.time() > deadline:
                    self._engine.cancel(request.id)
        finally:
            self._engine.cancel(request.id)

    def _alone(self) -> bool:
        """Whether no request runs beside this work."""
        residents = [*self._pool.residents]
        if self._pool.load_queue.requests or any(resident.draining for resident in residents):
            return False
        leases: int = sum(resident.leases for resident in residents)
        return leases <= 1
