"""Watchers of model folders: added and removed models, and missing drafts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from omlx.errors import Reason
from omlx.models.catalog.files import ModelFiles
from omlx.models.catalog.reference import MissingDraft, Reference
from omlx.models.catalog.registry import Registry
from omlx.models.pool.pool import Pool
from omlx.models.pool.speculation import SpeculationConfig

log = logging.getLogger("omlx.models")


class RegistryWatcher:
    """Registry watcher: `discover` scans the places, in a thread.

    An unchanged scan returns the same registry.
    """

    def __init__(self, pool: Pool, discover: Callable[[], Registry]) -> None:
        self._pool = pool
        self._discover = discover
        self._turns = asyncio.Lock()

    async def check(self) -> None:
        """Scan and list the current models; errors are logged.

        Loaded models and engine loops are unaffected; the draft watcher applies new drafts.
        """
        async with self._turns:  # a scan that began earlier must not be listed later
            try:
                self._pool.list_models(await asyncio.to_thread(self._discover))
            except Exception:  # the edge of a background task
                log.exception("model check failed")


Fetch = Callable[[Reference], Awaitable[Reason | None]]
"""Fetches a model; returns the reason of a failure."""


class DraftWatcher:
    """Draft watcher: `discover` rescans the places, `fetch` downloads a draft once.

    Only with `draft_download` set to `auto`.
    """

    def __init__(self, pool: Pool, discover: Callable[[], Registry], fetch: Fetch) -> None:
        self._pool = pool
        self._discover = discover
        self._fetch = fetch
        self._tried: set[Reference] = set()
        self._failed: dict[Path, ModelFiles] = {}

    async def run(self, interval_s: float) -> None:
        """Check at once and every `interval_s` seconds; errors are logged."""
        while True:
            try:
                await self.check()
            except Exception:  # the edge of a background task
                log.exception("draft check failed")
            await asyncio.sleep(interval_s)

    async def check(self) -> None:
        """Rescan if a loaded model misses its draft; fetch drafts and apply changes.

        A draft that could not be loaded is tried again once its files have changed.
        """
        missing = [served for served in self._pool.loaded if served.speculation.draft_missing]
        changed = await self._update_failed_stamps()
        if not missing and not changed:
            return
        registry = await asyncio.to_thread(self._discover)
        for served in missing:
            still_missing = await self._is_missing(served.id, registry)
            if still_missing and _fetches(served.speculation):
                await self._fetch_once(served.speculation.missing_draft)
                registry = await asyncio.to_thread(self._discover)
        arrived = [not await self._is_missing(served.id, registry) for served in missing]
        if changed or any(arrived):
            await self._pool.update_registry(registry)
            await self._update_failed_stamps()  # of drafts that have failed just now

    async def _is_missing(self, model: str, registry: Registry) -> bool:
        return await asyncio.to_thread(self._pool.draft_missing, model, registry)

    async def _update_failed_stamps(self) -> bool:
        """Stamp the files of drafts that failed; return whether one differs from the last check."""
        failed = [
            served.speculation.active_draft for served in self._pool.loaded if served.draft_failed
        ]
        before, paths = self._failed, [draft.path for draft in failed if draft is not None]
        self._failed = {path: await asyncio.to_thread(ModelFiles.at, path) for path in paths}
        return any(before.get(path, files) != files for path, files in self._failed.items())

    async def _fetch_once(self, missing: MissingDraft | None) -> None:
        if missing is None or missing.reference in self._tried:
            return
        self._tried.add(missing.reference)
        self._pool.fetching[missing.reference] = replace(missing, fetching=True)
        failed = await self._fetch(missing.reference)
        self._pool.fetching[missing.reference] = replace(missing, failed=failed)
        if failed is not None:
            fields = {"draft": str(missing.reference), "code": failed.code}
            log.warning("draft not fetched", extra={"fields": fields})


def _fetches(speculation: SpeculationConfig) -> bool:
    """Return whether a missing draft is fetched: not for a strategy that would not use it."""
    uses_draft = speculation.strategy.clause("draft") is not None
    return speculation.settings.draft_download == "auto" and uses_draft
