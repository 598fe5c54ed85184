"""Settings kept in the home folder: `config.json` for all models, `models.json` for each model.

    config.json   {"format": …, "server": {…}, "defaults": {"speculative": {…}, "sampling": {…}}, …}
    models.json   {"format": …, "models": {"org/name": {"speculative": {…}}}}

Every key is a row of the settings table; an unknown key is refused by its name. An invalid file
stops a start. A file that becomes invalid later is ignored: its last valid content counts until it
is repaired, and a note says why.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from omlx.errors import ConfigError, Outdated
from omlx.settings.file import locked, read, write
from omlx.settings.layer import Layer, Source, check_bounds
from omlx.settings.parse import from_json, to_json
from omlx.settings.schema import Scope, Setting, Value, table

GLOBAL_FILE: Final = "config.json"
MODELS_FILE: Final = "models.json"

Check = Callable[[str, Value, str], None]
"""Given a setting's name, its value and where it was set, raises ConfigError for what the table
cannot validate.
"""


@dataclass(frozen=True, slots=True)
class StoredSettings:
    """Immutable content of both files: `everywhere` for all models, `models` by model id.

    `notes` are the reasons why a file does not count.
    """

    everywhere: Layer = field(default_factory=lambda: Layer(Source.GLOBAL, {}))
    models: Mapping[str, Layer] = field(default_factory=dict)
    notes: tuple[ConfigError, ...] = ()

    def layer(self, model: str | None = None) -> Layer:
        """Return the settings stored for all models, or for one."""
        if model is None:
            return self.everywhere
        return self.models.get(model) or Layer(Source.MODEL, {})

    def revision(self, model: str | None = None) -> str:
        """Return a hash of what is stored for all models, or for one: equal values have equal
        revisions.
        """
        values = {name: to_json(value) for name, value in self.layer(model).values.items()}
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class _ValidContent:
    """Valid content of one file: its JSON object, and the layers parsed from it (None: for all
    models).
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    layers: Mapping[str | None, Layer] = field(default_factory=dict)


class Store:
    """Reader and writer of the settings files in `home`; `check` validates names."""

    def __init__(self, home: Path, check: Check = lambda name, value, where: None) -> None:
        self.home = home
        self._check = check
        self._valid: dict[Path, _ValidContent] = {}
        self._notes: dict[Path, ConfigError] = {}

    @property
    def paths(self) -> tuple[Path, Path]:
        return self.home / GLOBAL_FILE, self.home / MODELS_FILE

    def path(self, model: str | None = None) -> Path:
        """Return the file that stores the settings for all models, or those of a model."""
        return self.home / (GLOBAL_FILE if model is None else MODELS_FILE)

    def read(self, *, rename_broken: bool = False) -> StoredSettings:
        """Read both files; with `rename_broken`, first rename a file that cannot be parsed.

        Raises ConfigError for a key or value that is invalid in a file that has never been valid.
        """
        for path in self.paths:
            if rename_broken and read(path).broken:
                with locked(self.home):
                    self._set_note(path, read(path, held=True).note)
            self._read_file(path)
        layers: dict[str | None, Layer] = {}
        for path in self.paths:
            layers |= self._last_valid(path).layers
        everywhere = layers.pop(None, Layer(Source.GLOBAL, {}))
        models = {model: layer for model, layer in layers.items() if model is not None}
        return StoredSettings(everywhere, models, tuple(self._notes.values()))

    def patch(
        self, changes: Mapping[str, Value], model: str | None = None, *, expected: str | None = None
    ) -> None:
        """Change what is stored for all models, or for one; None removes a value. Values may be in
        their JSON form.

        A file that cannot be parsed is replaced by its last valid content with the changes. Raises
        ConfigError, and changes nothing, for unknown or misplaced names, for contradicting values,
        for a file that is not ours or holds invalid values; raises Outdated if the stored revision
        is not `expected`.
        """
        path = self.path(model)
        scope = Scope.GLOBAL
        if model is not None:
            scope = Scope.MODEL
        rows = [_row(name, scope) for name in changes]
        with locked(self.home):
            content = read(path, held=True)
            self._set_note(path, content.note)
            if content.foreign:
                raise ConfigError("config.not_ours", file=str(path))
            valid = self._last_valid(path)
            if not content.broken:
                valid = self._parse(content.values, path)
            if expected is not None and _stored(valid, model).revision(model) != expected:
                raise Outdated("config.outdated")
            values = deepcopy(dict(valid.values))
            for row in rows:
                _set(values, _key_path(row, model), to_json(changes[row.name]))
            self._parse(values, path)
            write(path, values)

    def _read_file(self, path: Path) -> None:
        """Read one file into `_valid`. Raises ConfigError if it is invalid and always was."""
        try:
            content = read(path)
            if content.note is None:
                self._valid[path] = self._parse(content.values, path)
            note = content.note
        except ConfigError as error:
            if path not in self._valid:
                raise
            note = error
        self._set_note(path, note)

    def _last_valid(self, path: Path) -> _ValidContent:
        return self._valid.get(path, _ValidContent())

    def _set_note(self, path: Path, note: ConfigError | None) -> None:
        """Replace the note of a file; the note of a renamed file stays while the renamed file
        exists.
        """
        if note is not None:
            self._notes[path] = note
        elif path in self._notes:
            kept = self._notes[path].params.get("kept", "")
            if not os.path.exists(str(kept)):
                del self._notes[path]

    def _parse(self, values: Mapping[str, Any], path: Path) -> _ValidContent:
        """Parse the JSON object of one file. Raises ConfigError for an unknown key or an invalid
        value.
        """
        known = self._last_valid(path)
        if repr(values) == repr(known.values):  # not ==, to which 1 is true
            return known
        sections: Mapping[str | None, Any] = {None: values}
        if path != self.path():
            sections = _model_sections(values, path)
        layers = {model: self._layer(section, model) for model, section in sections.items()}
        return _ValidContent(values, layers)

    def _layer(self, section: object, model: str | None) -> Layer:
        path, scope, source = self.path(model), Scope.GLOBAL, Source.GLOBAL
        above: tuple[str, ...] = ()
        if model is not None:
            scope, source, above = Scope.MODEL, Source.MODEL, ("models", model)
        values = {}
        # A list: an unknown key is reported before an invalid value.
        for row, raw in list(_leaves(section, _rows(scope), path, above)):
            where = f"{path}: {'.'.join(_key_path(row, model))}"
            if not row.allowed_in(scope):
                raise ConfigError("config.misplaced", where=where, name=row.name)
            values[row.name] = from_json(row, raw, where)
            self._check(row.name, values[row.name], where)
        layer = Layer(source, values)
        check_bounds(layer, str(path))
        return layer


def _stored(content: _ValidContent, model: str | None) -> StoredSettings:
    """Return the content of one file as settings, to compare revisions."""
    if model is None:
        return StoredSettings(content.layers.get(None) or Layer(Source.GLOBAL, {}))
    models = {name: layer for name, layer in content.layers.items() if name is not None}
    return StoredSettings(models=models)


def _model_sections(values: Mapping[str, Any], path: Path) -> Mapping[str | None, Any]:
    """Return the sections of models.json below `models`, by model id. Raises ConfigError for any
    other key.
    """
    for key in values:
        if key != "models":
            raise ConfigError("config.key", file=str(path), key=key)
    models = values.get("models", {})
    if not isinstance(models, dict):
        raise ConfigError("config.object", where=f"{path}: models")
    return models


def _leaves(
    section: object, rows: Mapping[tuple[str, ...], Setting], path: Path, above: tuple[str, ...]
) -> Iterator[tuple[Setting, object]]:
    """Yield the settings in nested objects with their raw values. Raises ConfigError for a key
    without a row.

    `above` is the place of the section in the file.
    """
    if not isinstance(section, dict):
        raise ConfigError("config.object", where=f"{path}: {'.'.join(above)}")
    for key, value in section.items():
        below = {keys[1:]: row for keys, row in rows.items() if keys[0] == key}
        if not below:
            raise ConfigError("config.key", file=str(path), key=".".join((*above, key)))
        if () in below:
            yield below[()], value
        else:
            yield from _leaves(value, below, path, (*above, key))


def _set(values: dict[str, Any], keys: tuple[str, ...], value: object) -> None:
    """Set a value in nested objects, or remove it (None); an object that becomes empty is removed
    too.
    """
    key, *rest = keys
    if rest:
        inner = values.setdefault(key, {})
        _set(inner, tuple(rest), value)
        if not inner:
            del values[key]
        return
    values.pop(key, None)  # a changed value moves to the end of its object
    if value is not None:
        values[key] = value


@cache
def _rows(scope: Scope) -> Mapping[tuple[str, ...], Setting]:
    """Return the settings by their place: in config.json, or below a model's id in models.json."""
    if scope is Scope.GLOBAL:
        return {_key_path(row, None): row for row in table().values()}
    return {_key_path(row, "")[2:]: row for row in table().values() if row.allowed_in(scope)}


def _key_path(row: Setting, model: str | None) -> tuple[str, ...]:
    keys = tuple(row.path.split("."))
    return keys if model is None else ("models", model, *keys[-2:])


def _row(name: str, scope: Scope) -> Setting:
    row = table().get(name)
    if row is None:
        raise ConfigError("config.unknown", name=name)
    if not row.allowed_in(scope):
        raise ConfigError("config.not_stored", name=name, scope=scope.value)
    return row
