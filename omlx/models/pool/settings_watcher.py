"""Settings that somebody else has kept while the server runs, with `omlx config` or by hand: noticed, and taken up as
if the dashboard had kept them. But for those that only a start takes up, and secrets (`Setting.reread`). So are the
packages of loaded models that somebody has written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from omlx.models.package.package import FILE
from omlx.models.pool.pool import Pool
from omlx.models.pool.resident import LoadJob
from omlx.settings.store import Stamp, Store, stamp

log = logging.getLogger("omlx.models")


class SettingsWatcher:
    def __init__(self, pool: Pool, store: Store) -> None:
        self._pool = pool
        self._store = store
        self._seen = self._stamps([])
        self._told: list[str] = []

    async def run(self, every_s: float) -> None:
        """Look again and again. Nothing that goes wrong in one look ends it."""
        while True:
            await asyncio.sleep(every_s)
            try:
                await self.look()
            except (
                Exception
            ):  # a file nobody can use ends no server; it is read again when it has changed
                log.exception("rereading")

    async def look(self) -> list[LoadJob]:
        """If the files have changed, have every loaded model take up what they hold now: at once, or, for what is
        returned, at its next idle moment."""
        folders = [resident.entry.path for resident in self._pool.residents]
        before, self._seen = self._seen, await asyncio.to_thread(self._stamps, folders)
        if all(before.get(path, seen) == seen for path, seen in self._seen.items()):
            return []
        await self._tell()
        return await self._pool.reconfigure()

    async def _tell(self) -> None:
        """Log which files went wrong since the last look. Of those that were kept aside, the log has that already."""
        notes = [
            note
            for note in await asyncio.to_thread(self._store.validate)
            if "kept" not in note.params
        ]
        for note in notes:
            if note.message not in self._told:
                log.warning(
                    "settings not taken up",
                    extra={"fields": {"code": note.code, "detail": note.message}},
                )
        self._told = [note.message for note in notes]

    def _stamps(self, folders: Sequence[Path]) -> dict[Path, Stamp]:
        """Of the files of settings, and of the packages in these folders."""
        return {
            path: stamp(path)
            for path in (*self._store.paths, *(folder / FILE for folder in folders))
        }
