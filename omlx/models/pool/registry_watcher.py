"""Watches for models that come and go, so that a running server lists what is on disk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from omlx.models.catalog.registry import Registry
from omlx.models.pool.pool import Pool

log = logging.getLogger("omlx.models")


class RegistryWatcher:
    """`discover` scans the places, in a thread; it returns the same registry if nothing changed."""

    def __init__(self, pool: Pool, discover: Callable[[], Registry]) -> None:
        self._pool = pool
        self._discover = discover
        self._turns = asyncio.Lock()

    async def run(self, interval_s: float) -> None:
        """Check every `interval_s` seconds."""
        while True:
            await asyncio.sleep(interval_s)
            await self.check()

    async def check(self) -> None:
        """Scan, and list what is there now; an error is logged. Loaded models and their engine
        loops stay as they are; a draft that has arrived is the draft watcher's to apply.
        """
        async with self._turns:  # a scan that began earlier must not be listed later
            try:
                self._pool.list_models(await asyncio.to_thread(self._discover))
            except Exception:  # the edge of a background task
                log.exception("model check failed")
