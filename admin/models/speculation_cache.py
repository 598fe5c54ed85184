"""The configured speculation of models, for pages that show hundreds of them every few seconds."""

from __future__ import annotations

from omlx.errors import OmlxError
from omlx.models.catalog.entry import ModelEntry
from omlx.models.package.package import FILE
from omlx.models.pool.pool import Pool
from omlx.models.pool.speculation_config import SpeculationConfig
from omlx.settings.file import FileStamp, file_stamp


class SpeculationCache:
    """Resolved again only after a change of registry, settings or the model's package file."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._revision = (pool.registry, pool.catalog.configuration)
        self._known: dict[str, tuple[FileStamp, SpeculationConfig | None]] = {}

    def get(self, entry: ModelEntry) -> SpeculationConfig | None:
        """Return None for a model that is unusable or has invalid settings. Reads files."""
        if not entry.usable:
            return None
        registry, configuration = self._revision
        current = (self._pool.registry, self._pool.catalog.configuration)
        if registry is not current[0] or configuration is not current[1]:
            self._revision, self._known = current, {}
        known, stamp = self._known, file_stamp(entry.path / FILE)
        if entry.id in known and known[entry.id][0] == stamp:
            return known[entry.id][1]
        speculation = self._resolve(entry)
        if speculation is None or speculation.missing_draft is None:  # a download changes that
            known[entry.id] = stamp, speculation
        return speculation

    def _resolve(self, entry: ModelEntry) -> SpeculationConfig | None:
        try:
            return self._pool.speculation(entry.id)
        except OmlxError:
            return None
