"""Configuration as immutable snapshots, and the object that publishes them.

Readers take `LiveConfiguration.current` and never touch a file. Writers and the watcher replace the
snapshot, off the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from omlx.errors import ConfigError, Reason
from omlx.settings.file import FileStamp, file_stamp
from omlx.settings.layers import Layer, Resolution, resolve
from omlx.settings.schema import Value
from omlx.settings.store import Store, StoredSettings

log = logging.getLogger("omlx.settings")


@dataclass(frozen=True, slots=True)
class Configuration:
    """Immutable snapshot: `run` holds flags and environment, `stored` the settings files."""

    run: tuple[Layer, ...] = ()
    stored: StoredSettings = field(default_factory=StoredSettings)

    @property
    def notes(self) -> tuple[Reason, ...]:
        return tuple(note.reason for note in self.stored.notes)

    def resolve(
        self, model: str | None = None, *package: Layer, profile: str | None = None
    ) -> Resolution:
        """Resolve every setting for all models, or for `model` with its package and a profile."""
        layers = [*self.run, *package, self.stored.layer()]
        if model is not None:
            layers.append(self.stored.layer(model))
        if profile is not None:
            layers.append(self.stored.layer(model, profile))
        return resolve(layers)


class LiveConfiguration:
    """Owner of the current snapshot: all reads and writes of the settings files.

    Reading `current` is safe on any thread; the other methods block on files and are serialised by
    a lock. Without a store there is nothing but `run`. Raises ConfigError if a file is invalid from
    the start.
    """

    def __init__(self, run: tuple[Layer, ...] = (), store: Store | None = None) -> None:
        self.store = store
        self.current = Configuration(run)
        self.stamps: dict[Path, FileStamp] = {}
        """Stamps of the files — taken before their last read: no later change is missed."""
        self._lock = Lock()
        self.refresh()

    def refresh(self) -> Configuration:
        """Read the files and publish their content. Raises ConfigError like `Store.read`."""
        with self._lock:
            return self._publish()

    def patch(
        self,
        changes: Mapping[str, Value],
        model: str | None = None,
        profile: str | None = None,
        *,
        expected: str | None = None,
    ) -> Configuration:
        """Store changes and publish the result. Raises like `Store.patch`."""
        assert self.store is not None
        with self._lock:
            self.store.patch(changes, model, profile, expected=expected)
            return self._publish()

    def _publish(self) -> Configuration:
        if self.store is not None:
            self.stamps = {path: file_stamp(path) for path in self.store.paths}
            self.current = Configuration(self.current.run, self.store.read())
        return self.current


class ConfigurationWatcher:
    """Publisher of settings that another process wrote, with `omlx config` or an editor.

    `packages` returns the package files to watch. `apply` is awaited on the event loop after each
    change, and applies the new snapshot to the loaded models. All files are read in a thread.
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

    async def check(self) -> bool:
        """Read, publish and apply the files if any has changed; return whether any had."""
        packages = tuple(self._packages())
        before, self._seen = self._seen, await asyncio.to_thread(self._stamps, packages)
        if all(before.get(path, stamp) == stamp for path, stamp in self._seen.items()):
            return False
        configuration = await asyncio.to_thread(self._live.refresh)
        self._log([note for note in configuration.stored.notes if "kept" not in note.params])
        await self._apply()
        return True

    def _log(self, notes: Iterable[ConfigError]) -> None:
        messages = []
        for note in notes:
            messages.append(note.message)
            if note.message not in self._logged:
                details = {"code": note.code, "detail": note.message}
                log.warning("settings not applied", extra={"fields": details})
        self._logged = messages

    def _stamps(self, packages: Iterable[Path]) -> dict[Path, FileStamp]:
        return {path: file_stamp(path) for path in (*self._live.stamps, *packages)}
