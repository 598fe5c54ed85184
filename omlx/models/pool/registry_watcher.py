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

    async def run(self, interval_s: float) -> None:
        """Check every `interval_s` seconds. An error in one check does not end it."""
        while True:
            await asyncio.sleep(interval_s)
            try:
                await self.check()
            except Exception:  # the edge of a background task
                log.exception("model check failed")

    async def check(self) -> None:
        """Scan, and list what is there now. Loaded models and their engine loops stay as they are;
        a draft that has arrived is the draft watcher's to apply.
        """
        self._pool.list_models(await asyncio.to_thread(self._discover))
