"""Which models this machine has: every place in order, the first usable one of an id wins, the rest say why not.

A name is looked up here and nowhere else, as an id and never as a path. The short name (`Qwen3-0.6B` for
`mlx-community/Qwen3-0.6B`) works where it is unambiguous.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

from omlx.engine.types import Reason
from omlx.errors import ModelError, NotFound
from omlx.models.catalog.entry import ModelEntry, Status
from omlx.models.catalog.inspect_checkpoint import inspect_checkpoint
from omlx.models.catalog.places import Place, places
from omlx.settings.schema import Settings

BUNDLED = Path(__file__).resolve().parents[2] / "bundled"


@dataclass(frozen=True)
class Registry:
    """All entries in the order found. At most one usable entry has a given id."""

    entries: tuple[ModelEntry, ...] = ()
    _by_id: dict[str, ModelEntry] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        for entry in self.entries:
            held = self._by_id.get(entry.id)
            if held is None or (held.status is not Status.USABLE and entry.status is Status.USABLE):
                self._by_id[entry.id] = entry

    @property
    def usable(self) -> tuple[ModelEntry, ...]:
        return tuple(entry for entry in self.entries if entry.status is Status.USABLE)

    def __contains__(self, model_id: str) -> bool:
        """Whether there is a usable model of this id."""
        held = self._by_id.get(model_id)
        return held is not None and held.status is Status.USABLE

    def find(self, name: str) -> ModelEntry:
        """The usable model called `name`, an id or an unambiguous short name.

        Raises NotFound for an unknown or ambiguous name, ModelError with the entry's reason for a skipped one.
        """
        entry = self._by_id.get(name) or self._by_short_name(name)
        if entry is None:
            raise NotFound("model.not_found", param="model", model=name)
        if entry.status is not Status.USABLE:
            raise _refusal(entry)
        return entry

    def _by_short_name(self, name: str) -> ModelEntry | None:
        found = [entry for entry in self._by_id.values() if entry.name == name]
        usable = [entry for entry in found if entry.status is Status.USABLE]
        if len(usable) > 1:
            ids = ", ".join(entry.id for entry in usable)
            raise NotFound("model.ambiguous", param="model", model=name, ids=ids)
        return next(iter(usable or found), None)


def find_mapped(name: str, registry: Registry, pairs: Iterable[str]) -> ModelEntry:
    """What `registry` has of that name or, if nobody is called so, what the first of the `pairs` whose pattern fits
    says (`claude-*=org/name`). Raises as `Registry.find` does."""
    try:
        return registry.find(name)
    except NotFound:
        for pattern, _, mapped in (pair.partition("=") for pair in pairs):
            if fnmatchcase(name, pattern.strip()):
                return registry.find(mapped.strip())
        raise


def discover(settings: Settings, environ: Mapping[str, str]) -> Registry:
    """Look in all places that `settings` leave on. Reads folders and configs; never fails, never writes."""
    return scan_places(places(settings, environ, BUNDLED))


def scan_places(where: Iterable[Place]) -> Registry:
    """The models of these places. A directory that two places reach is listed once."""
    seen: set[Path] = set()
    first: dict[str, ModelEntry] = {}
    entries = []
    for place in where:
        for model_id, directory in place.models():
            if (resolved := directory.resolve()) in seen:
                continue
            seen.add(resolved)
            entry = inspect_checkpoint(model_id, directory, place.source)
            if entry.status is Status.USABLE:
                winner = first.setdefault(model_id, entry)
                if winner is not entry:
                    entry = _shadowed(entry, winner)
            entries.append(entry)
    return Registry(tuple(entries))


def _shadowed(entry: ModelEntry, winner: ModelEntry) -> ModelEntry:
    reason = Reason("model.shadowed", {"by": str(winner.path), "source": winner.source})
    return replace(entry, status=Status.SHADOWED, reason=reason)


def _refusal(entry: ModelEntry) -> ModelError:
    assert entry.reason is not None
    return ModelError(entry.reason.code, param="model", **entry.reason.params, model=entry.id)
