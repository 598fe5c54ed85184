"""Model registry: all discovered model directories, by id and by short name.

Among directories with the same id the first usable one counts. Weights are not opened.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Final

from omlx.errors import ModelError, NotFound, Reason
from omlx.models.catalog.files import ModelFiles
from omlx.models.library.choose import Library

BUNDLED: Final = "bundled"
"""Source name of the demonstration models bundled with this package."""

UNKNOWN: Final = frozenset({"model.not_found", "model.similar"})
"""Codes of errors about a name of no model."""

_SIMILAR: Final = 3
_SIMILARITY: Final = 0.7
"""Ratio of matching characters from which a name is suggested."""


class Status(StrEnum):
    USABLE = "usable"
    SHADOWED = "shadowed"
    """Usable, but an earlier place has a model with the same id."""
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One model directory; `source` names its place, `reason` is set unless usable.

    `quantization` is a short label (`4-bit`, `mxfp4`), None for dense weights; `size_bytes` counts
    weights; `library` has the classes; `drafter` is the kind of a trained drafter, None for others.
    """

    id: str
    path: Path
    source: str
    status: Status = Status.USABLE
    reason: Reason | None = None
    size_bytes: int = 0
    model_type: str | None = None
    quantization: str | None = None
    library: Library | None = None
    drafter: str | None = None

    @property
    def name(self) -> str:
        """Short name: the id without its organisation."""
        return self.id.rpartition("/")[2]

    @property
    def usable(self) -> bool:
        return self.status is Status.USABLE

    @property
    def files(self) -> ModelFiles:
        """Current snapshot of the files. Stats every file."""
        return ModelFiles.at(self.path)


@dataclass(frozen=True)
class Registry:
    """All entries in the order of their places; at most one usable entry per id.

    Immutable: indices by id and by short name are built once, a rescan makes another registry.
    """

    entries: tuple[ModelEntry, ...] = ()
    _by_id: dict[str, ModelEntry] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )
    _by_name: dict[str, list[ModelEntry]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        for entry in self.entries:
            known = self._by_id.get(entry.id)
            if known is None or (entry.usable and not known.usable):
                self._by_id[entry.id] = entry
        for entry in self._by_id.values():
            self._by_name.setdefault(entry.name, []).append(entry)

    @property
    def usable(self) -> tuple[ModelEntry, ...]:
        return tuple(entry for entry in self.entries if entry.usable)

    @property
    def own(self) -> tuple[ModelEntry, ...]:
        """Usable models that are not bundled with this package."""
        return tuple(entry for entry in self.usable if entry.source != BUNDLED)

    def __contains__(self, model_id: str) -> bool:
        """Return whether a usable model has this id."""
        entry = self._by_id.get(model_id)
        return entry is not None and entry.usable

    def get(self, name: str) -> ModelEntry:
        """Return the model with this id or unambiguous short name, usable or not.

        Raises NotFound for an unknown or ambiguous name.
        """
        if name in self._by_id:
            return self._by_id[name]
        entries = self._by_name.get(name, [])
        if not entries:
            raise self._not_found(name)
        usable = [entry for entry in entries if entry.usable]
        if len(usable) > 1:
            ids = ", ".join(entry.id for entry in usable)
            raise NotFound("model.ambiguous", param="model", model=name, ids=ids)
        return next(iter(usable), entries[0])

    def _not_found(self, name: str) -> NotFound:
        """Return the error for an unknown name, with the most similar names."""
        names = {known.lower(): known for known in (*self._by_name, *self._by_id)}
        similar = [name.lower()]
        if name.lower() not in names:
            similar = get_close_matches(name.lower(), names, n=_SIMILAR, cutoff=_SIMILARITY)
        if not similar:
            return NotFound("model.not_found", param="model", model=name)
        found = (names[match] for match in similar)
        ids = dict.fromkeys(n if n in self._by_id else self._by_name[n][0].id for n in found)
        return NotFound("model.similar", param="model", model=name, similar=", ".join(ids))

    def get_usable(self, name: str) -> ModelEntry:
        """Return the usable model with this id or short name.

        Raises NotFound as `get` does, ModelError with the reason of an unusable model.
        """
        return check_usable(self.get(name))


def check_usable(entry: ModelEntry) -> ModelEntry:
    """Return `entry` if usable. Raises ModelError with the entry's reason otherwise."""
    if entry.usable:
        return entry
    assert entry.reason is not None
    raise ModelError(entry.reason.code, param="model", **entry.reason.params, model=entry.id)
