"""Settings as shown by forms and API, with warnings about missing things.

Values of secrets never leave the server.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from omlx.errors import BadRequest, ModelError, NotFound, Reason, optional_reason
from omlx.machine import machine_bytes
from omlx.models.catalog.catalog import Catalog
from omlx.models.catalog.config import longest_context
from omlx.models.catalog.reference import find_draft
from omlx.models.catalog.registry import UNKNOWN, ModelEntry
from omlx.models.pool.served import speculation_to_json
from omlx.models.pool.speculation import SpeculationConfig
from omlx.settings.layers import Layer, Resolution, Source, to_json
from omlx.settings.schema import AppliesAt, Group, Scope, Setting, Value, table
from omlx.settings.types import Form, size_text

from ..web.formats import memory

CONFIRMED: Final = frozenset({"trust_remote_code", "mcp_server"})
"""Settings that run programs of others; turning them on requires a confirmation."""

PICKED: Final = frozenset({"default_model", "fallback_model", "draft_model", "model_map"})
"""Settings whose values are models."""

_TYPES: Final[Mapping[type, str]] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    dict: "object",
    Path: "path",
}
"""Type in the API, by the type of a value."""

_LOCKING: Final = (Source.CLI, Source.ENVIRONMENT)


@dataclass(frozen=True, slots=True)
class MapRow:
    """A row of the model name mapping: requests for `pattern` use the model `target`."""

    pattern: str
    target: str
    warning: Reason | None = None

    @property
    def line(self) -> str:
        return f"{self.pattern}={self.target}"


@dataclass(frozen=True, slots=True)
class SettingView:
    """A setting: `value` is in effect, set by `source`; `stored` is None if nothing is stored.

    `options`: ids to choose from, for models; `warning`: about the value in effect; `rows`: the
    value in effect of a mapping; `scope`: place of storage.
    """

    row: Setting
    value: object
    source: Source
    stored: object
    is_set: bool
    options: Sequence[str] = ()
    warning: Reason | None = None
    rows: Sequence[MapRow] = ()
    scope: Scope = Scope.GLOBAL

    @property
    def name(self) -> str:
        return self.row.name

    @property
    def locked(self) -> bool:
        """Whether a flag or environment variable overrides every value stored in this scope."""
        return self.source in _LOCKING and self.scope is not Scope.PROFILE

    @property
    def lock(self) -> str:
        """The flag or environment variable that overrides the setting; else empty."""
        if not self.locked:
            return ""
        return self.row.flag if self.source is Source.CLI else self.row.variable

    @property
    def type(self) -> str:
        return "list" if self.row.repeatable else _TYPES[self.row.kind]

    @property
    def control(self) -> str:
        """Kind of form control: a `Form`, or `model`."""
        picks = self.name in PICKED and self.row.form is not Form.MAP
        return "model" if picks else self.row.form.value

    @property
    def text(self) -> str:
        """The stored value as typed; empty if none is stored."""
        return _text(self.stored, self.control)

    @property
    def effect(self) -> str:
        """The value in effect as typed."""
        return _text(self.value, self.control)

    @property
    def keyboard(self) -> str:
        """Input mode of a number: only digits, or also sign and decimal point."""
        digits_only = self.row.kind is int and self.row.meta.low >= 0
        return "numeric" if digits_only else "text"

    @property
    def confirm(self) -> bool:
        return self.name in CONFIRMED

    def record(self) -> dict[str, Any]:
        meta = self.row.meta
        low = high = None
        if meta.low < meta.high:
            low, high = meta.low, meta.high
        return {
            "group": meta.group.value,
            "type": self.type,
            "choices": list(self.row.choices) or None,
            "low": low,
            "high": high,
            "bytes": self.row.form is Form.SIZE,
            "secret": self.row.form is Form.SECRET,
            "help": self.row.help_key,
            "takes": meta.applies.value,
            "default": _shown(self.row, self.row.default),
            "value": self.value,
            "source": self.source.value,
            "locked": self.locked,
            "set": self.is_set,
            "stored": self.stored,
            "warning": optional_reason(self.warning),
        }


@dataclass(frozen=True, slots=True)
class SettingsView:
    """Settings of all models, of a model, or of a `profile`.

    `notes`: files not read, and why. `applied`: effective time of each change in a request; None
    without a change.
    """

    revision: str
    settings: Mapping[str, SettingView]
    notes: Sequence[Reason] = ()
    model: str | None = None
    speculative: SpeculationConfig | None = None
    applied: Mapping[str, str] | None = None
    profile: str | None = None

    def groups(self, *, without: Collection[str] = ()) -> dict[Group, list[SettingView]]:
        """Return all settings except `without`, by group, in the order of the table."""
        fields: dict[Group, list[SettingView]] = {group: [] for group in Group}
        for name, setting in self.settings.items():
            if name not in without:
                fields[setting.row.meta.group].append(setting)
        return {group: listed for group, listed in fields.items() if listed}

    def record(self) -> dict[str, Any]:
        record: dict[str, Any] = {
            "revision": self.revision,
            "settings": {name: setting.record() for name, setting in self.settings.items()},
            "notes": [note.to_json() for note in self.notes],
        }
        if self.applied is not None:
            record["applied"] = self.applied
        if self.model is not None:
            record["model"] = self.model
        if self.profile is not None:
            record["profile"] = self.profile
        if self.speculative is not None:
            record["speculation"] = speculation_to_json(self.speculative)
        return record


def setting_views(scope: Scope, resolution: Resolution, stored: Layer) -> dict[str, SettingView]:
    """Return the settings storable in `scope`, in the order of the table.

    `stored` is the layer of the scope: all models', a model's, or a profile's.
    """
    views = {}
    for name, row in table().items():
        if row.allowed_in(scope):
            views[name] = SettingView(
                row,
                value=_shown(row, resolution[name].value),
                source=resolution.sources[name],
                stored=_shown(row, stored.values.get(name)),
                is_set=name in stored.values,
                scope=scope,
            )
    return views


def applied(
    names: Iterable[str], resolution: Resolution, scope: Scope, *, busy: bool
) -> dict[str, str]:
    """Return each changed setting's effective time: `at_once`, `when_idle` or `restart`.

    `overridden`: a source above `scope` decides. `busy`: a model that must reload has requests;
    never so for a profile.
    """
    if scope is Scope.PROFILE:
        return dict.fromkeys(names, AppliesAt.AT_ONCE.value)
    own, when = Source(scope.value), {}
    for name in names:
        meta = table()[name].meta
        if resolution.sources[name].rank < own.rank:
            when[name] = "overridden"
        elif meta.applies is AppliesAt.RELOAD:
            when[name] = "when_idle" if busy else "at_once"
        else:
            when[name] = meta.applies.value
    return when


def _shown(row: Setting, value: Value) -> object:
    return None if row.form is Form.SECRET else to_json(value)


def _text(value: object, control: str) -> str:
    match value:
        case None:
            return ""
        case list():
            return "\n".join(map(str, value))
        case bool() | dict():
            return json.dumps(value, ensure_ascii=False)
        case int() if control == "size":
            return size_text(value)
        case _:
            return str(value)


@dataclass(frozen=True, slots=True)
class SettingWarnings:
    """Finds references in values in effect to things missing here. Reads files."""

    catalog: Catalog

    def of(self, name: str, value: Value, model: ModelEntry | None) -> Reason | None:
        """Return the warning about a setting of all models or of `model`; None without any."""
        match name, value:
            case _, None:
                return None
            case "default_model" | "fallback_model", _:
                return self._missing(str(value), self.catalog.resolve)
            case "memory_limit", int(limit) if limit > machine_bytes():
                return Reason("config.above_machine", {"memory": memory(machine_bytes())})
            case "draft_model", _:
                try:
                    found = find_draft(str(value), self.catalog.registry)
                except ModelError as error:
                    return error.reason
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
            return error.reason
        return None


def _covers(above: str, pattern: str) -> bool:
    """Whether `above` matches every name that `pattern` matches; only `*` is understood."""
    return not set("?[") & set(above) and fnmatchcase(pattern, above)
