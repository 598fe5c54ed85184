"""Discovery: every model directory in every place, in order of precedence, as a model registry.

A usable directory whose id an earlier usable one has is marked as shadowed, with the reason. One
whose name a terminal or a log would obey instead of showing it is not usable.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import TypeAlias

from omlx.errors import Reason
from omlx.models.catalog.entry import ModelEntry, Status
from omlx.models.catalog.folder_stamp import FolderStamp, folder_stamp
from omlx.models.catalog.inspect_checkpoint import download_folders, inspect_checkpoint
from omlx.models.catalog.places import Place, places
from omlx.models.catalog.registry import Registry
from omlx.settings.schema import Settings

_Stamp: TypeAlias = tuple[FolderStamp, ...]

BUNDLED = Path(__file__).resolve().parents[2] / "bundled"


def discover(settings: Settings, environ: Mapping[str, str]) -> Registry:
    """Scan the places that `settings` leave on. Reads folders and configs; never raises."""
    return discovery(settings, environ).scan()


def discovery(settings: Settings, environ: Mapping[str, str]) -> Discovery:
    """Return a discovery in the places that `settings` leave on."""
    return Discovery(places(settings, environ, BUNDLED))


def scan_places(searched: Iterable[Place]) -> Registry:
    """Inspect every model directory of these places."""
    return Discovery(searched).scan()


class Discovery:
    """Scans places again and again; a directory is inspected again only if a file has changed."""

    def __init__(self, searched: Iterable[Place]) -> None:
        self._places = tuple(searched)
        self._known: dict[tuple[str, Path], tuple[_Stamp, ModelEntry]] = {}
        self._registry = Registry()
        self._lock = Lock()

    def scan(self) -> Registry:
        """Return the models as they are now: the same registry object if nothing has changed.

        A directory that two places reach is listed once. Thread-safe.
        """
        with self._lock:
            entries = tuple(self._entries())
            if entries != self._registry.entries:
                self._registry = Registry(entries)
            return self._registry

    def _entries(self) -> Iterator[ModelEntry]:
        seen: set[str] = set()
        first: dict[str, ModelEntry] = {}
        known, self._known = self._known, {}
        for place in self._places:
            for model_id, directory in place.models():
                resolved = os.path.realpath(directory)
                if resolved in seen:
                    continue
                seen.add(resolved)
                key, stamp = (model_id, directory), _stamp(directory)
                before, entry = known.get(key, (None, None))
                if entry is None or before != stamp:
                    entry = inspect_checkpoint(model_id, directory, place.source)
                self._known[key] = stamp, entry
                if entry.usable:
                    winner = first.setdefault(model_id, entry)
                    if winner is not entry:
                        entry = _shadowed(entry, winner)
                yield entry


def _stamp(directory: Path) -> _Stamp:
    """Return the stamps of all files that an inspection looks at."""
    return tuple(folder_stamp(folder) for folder in (directory, *download_folders(directory)))


def _shadowed(entry: ModelEntry, winner: ModelEntry) -> ModelEntry:
    reason = Reason("model.shadowed", {"by": str(winner.path), "source": winner.source})
    return replace(entry, status=Status.SHADOWED, reason=reason)
