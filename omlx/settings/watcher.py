"""The one watcher of settings files and model packages while the server runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from omlx.errors import ConfigError
from omlx.settings.configuration import LiveConfiguration
from omlx.settings.file import FileStamp, file_stamp

log = logging.getLogger("omlx.settings")


class ConfigurationWatcher:
    """Publisher of settings that another process wrote, with `omlx config` or an editor.

    `packages` returns the package files to watch. `apply` is awaited on the event loop after each
    change, to make the loaded models take up the new snapshot. All files are read in a thread.
    """

    def __init__(
        self,
        live: LiveConfiguration,
        packages: Callable[[], Iterable[Path]],
        apply: Callable[[], Awaitable[object]],
    ) -> None:
        self._live = live
        self._packages = packages
        self._apply = apply
        self._seen = dict(live.stamps)
        self._logged: list[str] = []

    async def run(self, interval_s: float) -> None:
        """Check every `interval_s` seconds. An error in one check does not end it."""
        while True:
            await asyncio.sleep(interval_s)
            try:
                await self.check()
            except (
                Exception
            ):  # the edge of a background task; the files are read again once they change
                log.exception("settings watcher")

    async def check(self) -> bool:
        """Read the files if one has changed, publish and apply them. Return whether one had
        changed.
        """
        packages = tuple(self._packages())
        before, self._seen = self._seen, await asyncio.to_thread(self._stamps, packages)
        if all(before.get(path, stamp) == stamp for path, stamp in self._seen.items()):
            return False
        configuration = await asyncio.to_thread(self._live.refresh)
        self._log([note for note in configuration.stored.notes if "kept" not in note.params])
        await self._apply()
        return True

    def _log(self, notes: Iterable[ConfigError]) -> None:
        """Log the files that became invalid since the last check."""
        messages = []
        for note in notes:
            messages.append(note.message)
            if note.message not in self._logged:
                details = {"code": note.code, "detail": note.message}
                log.warning("settings not applied", extra={"fields": details})
        self._logged = messages

    def _stamps(self, packages: Iterable[Path]) -> dict[Path, FileStamp]:
        return {path: file_stamp(path) for path in (*self._live.stamps, *packages)}
