"""What the first page offers on a machine without models of its own: some that fit its memory."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from omlx.models.hub.downloads import Downloads
from omlx.models.hub.suggestions import starters
from omlx.models.pool.pool import Pool

from .view import QueueView, ResultsView, queue_view, results_view


@dataclass(frozen=True, slots=True)
class FirstView:
    """`offers` is None where there is a model, or where none fits. `queue`: what is downloaded."""

    offers: ResultsView | None
    queue: QueueView


async def first_view(downloads: Downloads, pool: Pool) -> FirstView:
    """Describe the offers, and the downloads of this machine."""
    queue, limit_bytes = await downloads.all(), pool.limit_bytes
    offers = [] if pool.registry.own else starters(limit_bytes)
    if not offers:
        return FirstView(None, queue_view(queue))
    room = limit_bytes, await asyncio.to_thread(downloads.free_bytes)
    return FirstView(results_view(None, offers, (), queue, room), queue_view(queue))
