"""A draft that a package declares and that was not here: noticed when it is, fetched if the settings say so.

Who brings it does not matter, a person with `omlx pull` or this server; it is used from the next idle moment on. No
request waits for any of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from omlx.engine.types import Reason
from omlx.models.discovery import Registry
from omlx.models.pool import Pool
from omlx.models.reference import Reference, Wanted

log = logging.getLogger("omlx.models")

Fetch = Callable[[Reference], Awaitable[Reason | None]]
"""Fetches a model; returns why it could not be."""


class Arrivals:
    """`discover` looks which models are here; `fetch` is used where `draft_download` is `auto`, once for each draft."""

    def __init__(self, pool: Pool, discover: Callable[[], Registry], fetch: Fetch) -> None:
        self._pool = pool
        self._discover = discover
        self._fetch = fetch
        self._tried: set[Reference] = set()

    async def run(self, every_s: float) -> None:
        """Look again and again. Nothing that goes wrong in one look ends it."""
        while True:
            try:
                await self.look()
            except Exception:
                log.exception("arrivals")
            await asyncio.sleep(every_s)

    async def look(self) -> None:
        """If models that are loaded lack their drafts, see whether those are here; if they are to be fetched, do."""
        lacking = [served for served in self._pool.loaded if served.speculative.wanted is not None]
        if not lacking:
            return
        registry = await asyncio.to_thread(self._discover)
        for served in lacking:
            if self._pool.lacks(served.id, registry) and served.speculative.settings.draft_download == "auto":
                await self._fetch_once(served.speculative.wanted)
                registry = await asyncio.to_thread(self._discover)
        if not all(self._pool.lacks(served.id, registry) for served in lacking):
            await self._pool.reconsider(registry)

    async def _fetch_once(self, wanted: Wanted | None) -> None:
        if wanted is None or wanted.reference in self._tried:
            return
        self._tried.add(wanted.reference)
        self._pool.fetching[wanted.reference] = replace(wanted, fetching=True)
        failed = await self._fetch(wanted.reference)
        self._pool.fetching[wanted.reference] = replace(wanted, failed=failed)
        if failed is not None:
            fields = {"draft": str(wanted.reference), "code": failed.code}
            log.warning("draft not fetched", extra={"fields": fields})
