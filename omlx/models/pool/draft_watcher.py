"""A draft that was not here: noticed when it is. One that a package declares is fetched if the settings say so.

Who brings it does not matter, a person with `omlx pull` or this server; it is used from the next idle moment on. No
request waits for any of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from omlx.engine.types import Reason
from omlx.models.catalog.discovery import Registry
from omlx.models.catalog.reference import MissingDraft, Reference
from omlx.models.pool.failure_cache import Files, files_of
from omlx.models.pool.pool import Pool
from omlx.models.pool.speculation_config import SpeculationConfig

log = logging.getLogger("omlx.models")

Fetch = Callable[[Reference], Awaitable[Reason | None]]
"""Fetches a model; returns why it could not be."""


class DraftWatcher:
    """`discover` looks which models are here; `fetch` is used where `draft_download` is `auto`, once for each draft."""

    def __init__(self, pool: Pool, discover: Callable[[], Registry], fetch: Fetch) -> None:
        self._pool = pool
        self._discover = discover
        self._fetch = fetch
        self._tried: set[Reference] = set()
        self._failed: dict[Path, Files] = {}

    async def run(self, every_s: float) -> None:
        """Look again and again. Nothing that goes wrong in one look ends it."""
        while True:
            try:
                await self.look()
            except Exception:
                log.exception("arrivals")
            await asyncio.sleep(every_s)

    async def look(self) -> None:
        """If models that are loaded lack their drafts, see whether those are here; if they are to be fetched, do.

        A draft that could not be read is tried again once its files are others.
        """
        lacking = [served for served in self._pool.loaded if served.speculation.draft_missing]
        mended = await self._mended()
        if not lacking and not mended:
            return
        registry = await asyncio.to_thread(self._discover)
        for served in lacking:
            if self._pool.draft_missing(served.id, registry) and _fetches(served.speculation):
                await self._fetch_once(served.speculation.missing_draft)
                registry = await asyncio.to_thread(self._discover)
        if mended or not all(self._pool.draft_missing(served.id, registry) for served in lacking):
            await self._pool.update_registry(registry)
            await self._mended()  # what has failed just now is known as it was then

    async def _mended(self) -> bool:
        """Whether a draft that could not be used has other files than at the last look."""
        drafts = [
            served.speculation.active_draft for served in self._pool.loaded if served.draft_failed
        ]
        before, paths = self._failed, [draft.path for draft in drafts if draft is not None]
        self._failed = await asyncio.to_thread(lambda: {path: files_of(path) for path in paths})
        return any(before.get(path, files) != files for path, files in self._failed.items())

    async def _fetch_once(self, wanted: MissingDraft | None) -> None:
        if wanted is None or wanted.reference in self._tried:
            return
        self._tried.add(wanted.reference)
        self._pool.fetching[wanted.reference] = replace(wanted, fetching=True)
        failed = await self._fetch(wanted.reference)
        self._pool.fetching[wanted.reference] = replace(wanted, failed=failed)
        if failed is not None:
            fields = {"draft": str(wanted.reference), "code": failed.code}
            log.warning("draft not fetched", extra={"fields": fields})


def _fetches(speculation: SpeculationConfig) -> bool:
    """Whether a draft is to be brought that is not here: not for a strategy that would leave it out."""
    return (
        speculation.settings.draft_download == "auto"
        and speculation.strategy.step("draft") is not None
    )
