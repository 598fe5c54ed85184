"""Discovery: every model directory in every place, in order of precedence, as a model registry.

A usable directory whose id an earlier usable one has is marked as shadowed, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from omlx.errors import Reason
from omlx.models.catalog.entry import ModelEntry, Status
from omlx.models.catalog.inspect_checkpoint import inspect_checkpoint
from omlx.models.catalog.places import Place, places
from omlx.models.catalog.registry import Registry
from omlx.settings.schema import Settings

BUNDLED = Path(__file__).resolve().parents[2] / "bundled"


def discover(settings: Settings, environ: Mapping[str, str]) -> Registry:
    """Scan the places that `settings` leave on. Reads folders and configs; never raises."""
    return scan_places(places(settings, environ, BUNDLED))


def scan_places(searched: Iterable[Place]) -> Registry:
    """Inspect every model directory of these places. A directory that two places reach is listed
    once.
    """
    seen: set[Path] = set()
    first: dict[str, ModelEntry] = {}
    entries = []
    for place in searched:
        for model_id, directory in place.models():
            resolved = directory.resolve()
            if resolved in seen:
                continue
            seen.add(resolved)
            entry = inspect_checkpoint(model_id, directory, place.source)
            if entry.usable:
                winner = first.setdefault(model_id, entry)
                if winner is not entry:
                    entry = _shadowed(entry, winner)
            entries.append(entry)
    return Registry(tuple(entries))


def _shadowed(entry: ModelEntry, winner: ModelEntry) -> ModelEntry:
    reason = Reason("model.shadowed", {"by": str(winner.path), "source": winner.source})
    return replace(entry, status=Status.SHADOWED, reason=reason)
