"""Settings kept in the home folder: `config.json` for all models, `models.json` for each model.

    config.json   {"format": …, "server": {…}, "defaults": {"speculative": {…}, "sampling": {…}}, …}
    models.json   {"format": …, "models": {"org/name": {"speculative": {…}, "profiles": {…}}}}

Below `profiles` is a section like a model's for each of its profiles, by name.

Every key is a row of the settings table; an unknown key is refused by its name. An invalid file
stops a start. A file that becomes invalid later is ignored: its last valid content counts until a
repair, and a note gives the reason.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from omlx.errors import ConfigError, Outdated
from omlx.settings.file import locked, read, write
from omlx.settings.layers import Layer, Source, check_bounds, from_json, to_json
from omlx.settings.schema import Scope, Setting, Value, table

GLOBAL_FILE: Final = "config.json"
MODELS_FILE: Final = "models.json"
PROFILES: Final = "profiles"
RESERVED: Final = "latest"
"""Reserved profile name — Ollama's clients add `latest` to names without a tag."""

_PROFILE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")

Tree: TypeAlias = "dict[str, Setting | Tree]"
Check: TypeAlias = Callable[[str, Value, str], None]
"""Validation that the table cannot express: of a setting's name, its value and where it was set.
Raises ConfigError."""


class Owner(NamedTuple):
    """Owner of settings: all models, the model with an id, or a profile of the model."""

    model: str | None = None
    profile: str | None = None

    @property
    def scope(self) -> Scope:
        if self.profile is not None:
            return Scope.PROFILE
        return Scope.GLOBAL if self.model is None else Scope.MODEL

    @property
    def place(self) -> tuple[str, ...]:
        """Keys of the owner's section, from the top of its file."""
        if self.model is None:
            return ()
        place = "models", self.model
        return place if self.profile is None else (*place, PROFILES, self.profile)

    def key_path(self, row: Setting) -> tuple[str, ...]:
        keys = tuple(row.path.split("."))
        return keys if self.model is None else (*self.place, *keys[-2:])


@dataclass(frozen=True, slots=True)
class StoredSettings:
    """Immutable content of both files, as layers by owner."""

    layers: Mapping[Owner, Layer] = field(default_factory=dict)
    notes: tuple[ConfigError, ...] = ()  # why a file is ignored

    @property
    def models(self) -> Mapping[str, Layer]:
        """Settings of each model that has some of its own, by model id."""
        own = {owner.model: layer for owner, layer in self.layers.items() if owner.profile is None}
        return {model: layer for model, layer in own.items() if model is not None}

    def profiles(self, model: str) -> Mapping[str, Layer]:
        mine = [owner for owner in self.layers if owner.model == model]
        return {owner.profile: self.layers[owner] for owner in mine if owner.profile is not None}

    def layer(self, model: str | None = None, profile: str | None = None) -> Layer:
        owner = Owner(model, profile)
        return self.layers.get(owner) or Layer(Source(owner.scope.value), {})

    def revision(self, model: str | None = None, profile: str | None = None) -> str:
        """Return a hash of the stored values: equal values have equal revisions."""
        layer = self.layer(model, profile)
        values = {name: to_json(value) for name, value in layer.values.items()}
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class _ValidContent:
    values: Mapping[str, Any] = field(default_factory=dict)
    layers: Mapping[Owner, Layer] = field(default_factory=dict)


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
        return self.home / (GLOBAL_FILE if model is None else MODELS_FILE)

    def read(self, *, rename_broken: bool = False) -> StoredSettings:
        """Read both files; with `rename_broken`, first rename an unparsable file.

        Raises ConfigError for an invalid key or value in a file never valid before.
        """
        for path in self.paths:
            if rename_broken and read(path).broken:
                with locked(self.home):
                    self._set_note(path, read(path, held=True).note)
            self._read_file(path)
        layers: dict[Owner, Layer] = {}
        for path in self.paths:
            layers |= self._last_valid(path).layers
        return StoredSettings(layers, tuple(self._notes.values()))

    def patch(
        self,
        changes: Mapping[str, Value],
        model: str | None = None,
        profile: str | None = None,
        *,
        expected: str | None = None,
    ) -> None:
        """Change the values stored for all models, for `model`, or for a profile of `model`.

        None removes a value; removing the last value of a profile removes the profile. Values may
        be in their JSON form.

        An unparsable file is replaced by its last valid content with the changes. Raises
        ConfigError, and changes nothing, for unknown or misplaced names, for contradicting values,
        for a file that is not ours or holds invalid values; raises Outdated if the stored revision
        is not `expected`.
        """
        path, owner = self.path(model), Owner(model, profile)
        rows = [_row(name, owner.scope) for name in changes]
        with locked(self.home):
            content = read(path, held=True)
            self._set_note(path, content.note)
            if content.foreign:
                raise ConfigError("config.not_ours", file=str(path))
            valid = self._last_valid(path)
            if not content.broken:
                valid = self._parse(content.values, path)
            stored = StoredSettings(valid.layers)
            if expected is not None and stored.revision(model, profile) != expected:
                raise Outdated("config.outdated")
            values = deepcopy(dict(valid.values))
            for row in rows:
                _set(values, owner.key_path(row), to_json(changes[row.name]))
            self._parse(values, path)
            write(path, values)

    def _read_file(self, path: Path) -> None:
        """Read a file into `_valid`. Raises ConfigError if the file was never valid."""
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
        """Replace the note of a file. A renamed file's note stays while the renamed file exists."""
        if note is not None:
            self._notes[path] = note
        elif path in self._notes:
            kept = self._notes[path].params.get("kept", "")
            if not os.path.exists(str(kept)):
                del self._notes[path]

    def _parse(self, values: Mapping[str, Any], path: Path) -> _ValidContent:
        """Parse the object of a file. Raises ConfigError for an unknown key or invalid value."""
        known = self._last_valid(path)
        if repr(values) == repr(known.values):  # `==` would equate 1 and true
            return known
        sections: Mapping[Owner, Any] = {Owner(): values}
        if path != self.path():
            sections = dict(_model_sections(values, path))
        layers = {owner: self._layer(section, owner) for owner, section in sections.items()}
        return _ValidContent(values, layers)

    def _layer(self, section: object, owner: Owner) -> Layer:
        path, scope = self.path(owner.model), owner.scope
        values = {}
        # A list: an unknown key is reported before an invalid value.
        for row, raw in list(_leaves(section, _tree(scope), path, owner.place)):
            where = f"{path}: {'.'.join(owner.key_path(row))}"
            if not row.allowed_in(scope):
                raise ConfigError("config.misplaced", where=where, name=row.name)
            values[row.name] = from_json(row, raw, where)
            self._check(row.name, values[row.name], where)
        layer = Layer(Source(scope.value), values)
        check_bounds(layer, str(path))
        return layer


def check_profile_name(name: str, where: str) -> None:
    """Raise ConfigError for an invalid or reserved profile name."""
    if _PROFILE_NAME.fullmatch(name) is None or name == RESERVED:
        raise ConfigError("config.profile_name", where=where, value=name, reserved=RESERVED)


def _model_sections(values: Mapping[str, Any], path: Path) -> Iterator[tuple[Owner, Any]]:
    """Yield the sections of models.json: those of each model, and of its profiles.

    Raises ConfigError for any other key, and for an invalid profile name.
    """
    for key in values:
        if key != "models":
            raise ConfigError("config.key", file=str(path), key=key)
    models = values.get("models", {})
    if not isinstance(models, dict):
        raise ConfigError("config.object", where=f"{path}: models")
    for model, section in models.items():
        if not isinstance(section, dict):
            raise ConfigError("config.object", where=f"{path}: models.{model}")
        own = dict(section)
        profiles = own.pop(PROFILES, {})
        yield Owner(model), own
        where = f"{path}: models.{model}.{PROFILES}"
        if not isinstance(profiles, dict):
            raise ConfigError("config.object", where=where)
        for name, values_of_profile in profiles.items():
            check_profile_name(name, where)
            yield Owner(model, name), values_of_profile


def _leaves(
    section: object, tree: Tree, path: Path, above: tuple[str, ...]
) -> Iterator[tuple[Setting, object]]:
    """Yield the settings in nested objects with their raw values.

    `above` is the place of the section in the file. Raises ConfigError for a key that `tree` lacks.
    """
    if not isinstance(section, dict):
        raise ConfigError("config.object", where=f"{path}: {'.'.join(above)}")
    for key, value in section.items():
        match tree.get(key):
            case None:
                raise ConfigError("config.key", file=str(path), key=".".join((*above, key)))
            case Setting() as row:
                yield row, value
            case below:
                yield from _leaves(value, below, path, (*above, key))


def _set(values: dict[str, Any], keys: tuple[str, ...], value: object) -> None:
    """Set a value in nested objects; None removes the value and objects that become empty."""
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
def _tree(scope: Scope) -> Tree:
    """Return the settings as nested in config.json, or in a section of models.json."""
    tree: Tree = {}
    for row in table().values():
        if scope is Scope.GLOBAL:
            _set(tree, Owner().key_path(row), row)
        elif row.allowed_in(scope):
            _set(tree, Owner("").key_path(row)[2:], row)
    return tree


def _row(name: str, scope: Scope) -> Setting:
    row = table().get(name)
    if row is None:
        raise ConfigError("config.unknown", name=name)
    if not row.allowed_in(scope):
        raise ConfigError("config.not_stored", name=name, scope=scope.value)
    return row
