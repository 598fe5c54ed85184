"""Warnings about stored settings: references to missing things, values beyond this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from omlx.errors import BadRequest, ModelError, NotFound, Reason
from omlx.models.catalog.catalog import Catalog
from omlx.models.catalog.config import longest_context
from omlx.models.catalog.reference import find_draft
from omlx.models.catalog.registry import UNKNOWN, ModelEntry
from omlx.process_memory import machine_bytes
from omlx.settings.schema import Value

from ..web.formats import memory
from .view import MapRow


@dataclass(frozen=True, slots=True)
class SettingWarnings:
    """Finds references in values in effect to things missing here. Reads files."""

    catalog: Catalog

    def of(self, name: str, value: Value, model: ModelEntry | None) -> Reason | None:
        """Return the warning about a setting of all models or of `model`; None without any."""
        match name, value:
            case _, None:
                return None
            case "default_model", _:
                return self._missing(str(value), self.catalog.resolve)
            case "memory_limit", int(limit) if limit > machine_bytes():
                return Reason("config.above_machine", {"memory": memory(machine_bytes())})
            case "draft_model", _:
                try:
                    found = find_draft(str(value), self.catalog.registry)
                except ModelError as error:
                    return Reason(error.code, error.params)
                return found if isinstance(found, Reason) else None
            case "model_map", _:
                return next(filter(None, (row.warning for row in self.map_rows(value))), None)
            case "model_dir", tuple(folders):
                missing = (folder for folder in folders if not Path(folder).is_dir())
                reasons = (Reason("config.no_folder", {"folder": str(path)}) for path in missing)
                return next(reasons, None)
            case "max_context", int(tokens) if model is not None and model.usable:
                try:
                    limit = longest_context(model.files.config, 0)
                except ModelError:  # the model's page says so
                    return None
                return Reason("config.context_above", {"limit": limit}) if tokens > limit else None
        return None

    def map_rows(self, value: Value) -> Sequence[MapRow]:
        """Return the rows of a model name mapping, in order, each with its warning."""
        rows: list[MapRow] = []
        seen, wide = set[str](), list[str]()  # patterns above, and those that may match others
        for rule in map(str, value if isinstance(value, tuple) else ()):
            pattern, _, target = (part.strip() for part in rule.partition("="))
            above = next((other for other in wide if _covers(other, pattern)), None)
            if pattern in seen:
                above = pattern
            elif "*" in pattern:
                wide.append(pattern)
            seen.add(pattern)
            warning = self._missing(target, self.catalog.target)
            if warning is None and above is not None:
                warning = Reason("config.map_unused", {"pattern": above})
            rows.append(MapRow(pattern, target, warning))
        return rows

    def _missing(self, name: str, resolve: Callable[[str], ModelEntry]) -> Reason | None:
        try:
            resolve(name)
        except (NotFound, BadRequest, ModelError) as error:
            if error.code in UNKNOWN:
                return Reason("config.no_model", {"model": name})
            return Reason(error.code, error.params)
        return None


def _covers(above: str, pattern: str) -> bool:
    """Whether `above` matches every name that `pattern` matches; only `*` is understood."""
    return not set("?[") & set(above) and fnmatchcase(pattern, above)
