"""Settings that somebody else has kept while the server runs, with `omlx config` or by hand: noticed, and taken up as
if the dashboard had kept them. But for those that only a start takes up, and secrets (`Setting.reread`).
"""

from __future__ import annotations

import asyncio
import logging

from omlx.models.pool import Pool
from omlx.models.resident import Loading
from omlx.settings.store import Store

log = logging.getLogger("omlx.models")


class Rereading:
    def __init__(self, pool: Pool, store: Store) -> None:
        self._pool = pool
        self._store = store
        self._seen = store.stamp()

    async def run(self, every_s: float) -> None:
        """Look again and again. Nothing that goes wrong in one look ends it."""
        while True:
            await asyncio.sleep(every_s)
            try:
                await self.look()
            except Exception:  # whatever it was, the files may be read again in the next look
                log.exception("rereading")

    async def look(self) -> list[Loading]:
        """If the files have changed, have every loaded model take up what they hold now: at once, or, for what is
        returned, at its next idle moment."""
        now = await asyncio.to_thread(self._store.stamp)
        if now == self._seen:
            return []
        self._seen = now
        return await self._pool.reconfigure()
