"""Checks of values that the table of settings cannot judge: malformed ones are refused, those that
name something missing are stored with a warning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from omlx.errors import BadRequest, ConfigError, ModelError, NotFound, Reason
from omlx.models.catalog.context import longest_context
from omlx.models.catalog.entry import ModelEntry
from omlx.models.catalog.model_config import read_config
from omlx.models.catalog.reference import find_draft
from omlx.models.pool.pool import Pool
from omlx.settings.schema import Value

from .view import MapRow

_ORIGIN: Final = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^\s/?#@]+/?", re.IGNORECASE)
_HOST: Final = re.compile(r"\*|\[[0-9a-f:.]+\]|[\w.-]+", re.IGNORECASE)


def check_form(name: str, value: Value) -> None:
    """Raise ConfigError for an origin or a host name that no browser could send."""
    forms = {"allow_origin": (_ORIGIN, "config.origin"), "allow_host": (_HOST, "config.host_name")}
    if name not in forms or not isinstance(value, tuple):
        return
    form, code = forms[name]
    for part in map(str, value):
        if form.fullmatch(part) is None:
            raise ConfigError(code, where=name, value=part)


class SettingWarnings:
    """Finds what a value in effect names and this machine lacks. Reads files."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._checks: Mapping[str, Callable[[Value, ModelEntry | None], Reason | None]] = {
            "default_model": self._default_model,
            "draft_model": self._draft_model,
            "model_map": self._model_map,
            "model_dir": self._model_dir,
            "max_context": self._max_context,
        }

    def of(self, name: str, value: Value, model: ModelEntry | None) -> Reason | None:
        """Return the warning about a setting of all models, or of one; None if there is none."""
        if value is None or name not in self._checks:
            return None
        return self._checks[name](value, model)

    def map_rows(self, value: Value) -> Sequence[MapRow]:
        """Return the rows of a model name mapping, in order, each with its warning."""
        rows: list[MapRow] = []
        seen, wide = set[str](), list[str]()  # patterns above, and those that may match others
        for rule in map(str, _parts(value)):
            pattern, _, target = (part.strip() for part in rule.partition("="))
            above = next((other for other in wide if _covers(other, pattern)), None)
            if pattern in seen:
                above = pattern
            elif "*" in pattern:
                wide.append(pattern)
            seen.add(pattern)
            warning = self._missing(target, self._pool.catalog.target)
            if warning is None and above is not None:
                warning = Reason("config.map_unused", {"pattern": above})
            rows.append(MapRow(pattern, target, warning))
        return rows

    def _default_model(self, value: Value, model: ModelEntry | None) -> Reason | None:
        return self._missing(str(value), self._pool.resolve)

    def _draft_model(self, value: Value, model: ModelEntry | None) -> Reason | None:
        try:
            found = find_draft(str(value), self._pool.registry)
        except ModelError as error:
            return Reason(error.code, error.params)
        return found if isinstance(found, Reason) else None

    def _model_map(self, value: Value, model: ModelEntry | None) -> Reason | None:
        return next(filter(None, (row.warning for row in self.map_rows(value))), None)

    def _model_dir(self, value: Value, model: ModelEntry | None) -> Reason | None:
        missing = next((path for path in _parts(value) if not Path(path).is_dir()), None)
        if missing is None:
            return None
        return Reason("config.no_folder", {"folder": str(missing)})

    def _max_context(self, value: Value, model: ModelEntry | None) -> Reason | None:
        if model is None or not model.usable or not isinstance(value, int):
            return None
        try:
            limit = longest_context(read_config(model.path, "config.json"), 0)
        except ModelError:  # the model's page says so
            return None
        if value <= limit:
            return None
        return Reason("config.context_above", {"limit": limit})

    def _missing(self, name: str, resolve: Callable[[str], ModelEntry]) -> Reason | None:
        try:
            resolve(name)
        except (NotFound, BadRequest, ModelError) as error:
            if error.code == "model.not_found":
                return Reason("config.no_model", {"model": name})
            return Reason(error.code, error.params)
        return None


def _parts(value: Value) -> Sequence[str | Path]:
    return value if isinstance(value, tuple) else ()


def _covers(above: str, pattern: str) -> bool:
    """Whether every name that `pattern` matches is matched by `above`; only `*` is understood."""
    return not set("?[") & set(above) and fnmatchcase(pattern, above)
