"""The settings that are kept: `config.json` for all models, `models.json` for each one, in the home folder.

    config.json   {"format": …, "server": {…}, "defaults": {"speculative": {…}, "sampling": {…}}, …}
    models.json   {"format": …, "models": {"org/name": {"speculative": {…}}}}

Every key is a row of the table; one that is not is refused by its name. A change names what it changes and leaves the
rest: None takes a value out, so that the next source decides.

What is wrong in a file stops a start. A file that goes wrong under a process that has read it stops nothing: what it
held when it was last right counts until it is right again, and `notes` tell why.
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
from typing import Any, Final, TypeAlias

from omlx.errors import ConfigError, Outdated
from omlx.settings.file import locked, read, write
from omlx.settings.layer import Layer, Source, check_bounds
from omlx.settings.parse import from_json, to_json
from omlx.settings.schema import Scope, Setting, Value, table

GLOBAL_FILE: Final = "config.json"
MODELS_FILE: Final = "models.json"

Stamp: TypeAlias = tuple[int, int, int] | None
Check = Callable[[str, Value, str], None]
"""Given a setting's name, a value and its place, raises ConfigError for what the table cannot judge."""


@dataclass(frozen=True, slots=True)
class _Right:
    """What a file holds that is right: as JSON has it, and what it sets, by model (None: for all)."""

    values: Mapping[str, Any] = field(default_factory=dict)
    layers: Mapping[str | None, Layer] = field(default_factory=dict)

    def layer(self, model: str | None) -> Layer:
        return self.layers.get(model) or Layer(Source.GLOBAL if model is None else Source.MODEL, {})


@dataclass(frozen=True, slots=True)
class Store:
    """The files in `home`. They are read at every call: another process may have changed them.

    Whatever reads raises ConfigError for a key or value that cannot be in a file that has never been right.
    """

    home: Path
    check: Check = lambda name, value, where: None
    _right: dict[Path, _Right] = field(init=False, repr=False, compare=False, default_factory=dict)
    _notes: dict[Path, ConfigError] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    @property
    def notes(self) -> list[ConfigError]:
        """Why a file did not count when it was last read; of one that was kept aside, while it lies there."""
        return list(self._notes.values())

    def layer(self, model: str | None = None) -> Layer:
        """What is stored for all models, or for one."""
        return self._read(self.path(model)).layer(model)

    def validate(self, *, aside: bool = False) -> list[ConfigError]:
        """Read everything, having moved `aside` what cannot be parsed. Returns `notes`."""
        for path in self.paths:
            if aside and read(path).broken:
                with locked(self.home):
                    self._note(path, read(path, held=True).note)
            self._read(path)
        return self.notes

    def models(self) -> Mapping[str, Layer]:
        """What is stored for each model that has settings of its own."""
        layers = self._read(self.home / MODELS_FILE).layers
        return {model: layer for model, layer in layers.items() if model is not None}

    def revision(self, model: str | None = None) -> str:
        """A name for what is stored for all models, or for one, as it is now: the same values have the same one."""
        return _revision(self.layer(model))

    @property
    def paths(self) -> tuple[Path, Path]:
        return self.home / GLOBAL_FILE, self.home / MODELS_FILE

    def patch(
        self, changes: Mapping[str, Value], model: str | None = None, *, expected: str | None = None
    ) -> None:
        """Change what is stored for all models, or for one; None takes a value out. Values may be as JSON has them.

        In place of a file that cannot be parsed, what counts is written. Raises ConfigError, and changes nothing, for
        unknown or misplaced names, for values that contradict each other, for a file that is not ours or holds what
        cannot be; and Outdated if the revision is not the `expected` one.
        """
        path = self.path(model)
        rows = [_row(name, Scope.GLOBAL if model is None else Scope.MODEL) for name in changes]
        with locked(self.home):
            content = read(path, held=True)
            self._note(path, content.note)
            if content.foreign:
                raise ConfigError("config.not_ours", file=str(path))
            now = self._counting(path) if content.broken else self._judged(content.values, path)
            if expected is not None and _revision(now.layer(model)) != expected:
                raise Outdated("config.outdated")
            values = deepcopy(dict(now.values))
            for row in rows:
                _put(values, _steps(row, model), to_json(changes[row.name]))
            self._judged(values, path)
            write(path, values)

    def path(self, model: str | None = None) -> Path:
        return self.home / (GLOBAL_FILE if model is None else MODELS_FILE)

    def _read(self, path: Path) -> _Right:
        """What counts of a file."""
        try:
            content = read(path)
            if content.note is None:
                self._right[path] = self._judged(content.values, path)
        except ConfigError as error:
            if path not in self._right:
                raise
            self._note(path, error)
        else:
            self._note(path, content.note)
        return self._counting(path)

    def _counting(self, path: Path) -> _Right:
        return self._right.get(path, _Right())

    def _note(self, path: Path, note: ConfigError | None) -> None:
        if note is not None:
            self._notes[path] = note
        elif (known := self._notes.get(path)) is not None and not os.path.exists(
            str(known.params.get("kept", ""))
        ):
            self._notes.pop(path, None)

    def _judged(self, values: Mapping[str, Any], path: Path) -> _Right:
        """Raises ConfigError for a key or value that cannot be."""
        known = self._counting(path)
        if repr(values) == repr(known.values):  # and not ==, to which 1 is true
            return known
        models = (None,) if path == self.path() else _models(values, path)
        return _Right(values, {model: self._layer(values, model) for model in models})

    def _layer(self, values: Mapping[str, Any], model: str | None) -> Layer:
        scope, source = (
            (Scope.GLOBAL, Source.GLOBAL) if model is None else (Scope.MODEL, Source.MODEL)
        )
        path = self.path(model)
        own, above = (
            (values, ())
            if model is None
            else (_models(values, path).get(model, {}), ("models", model))
        )
        found = dict(_leaves(own, _rows(scope), path, above))
        read_values = {}
        for row, raw in found.items():
            where = f"{path}: {_dotted(_steps(row, model))}"
            if not row.may_stand_in(scope):
                raise ConfigError("config.misplaced", where=where, name=row.name)
            read_values[row.name] = from_json(row, raw, where)
            self.check(row.name, read_values[row.name], where)
        layer = Layer(source, read_values)
        check_bounds(layer, str(path))
        return layer


def stamp(path: Path) -> Stamp:
    """What tells a file as it is from the file as it was, without reading it."""
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_ino, about.st_size, about.st_mtime_ns


def _revision(layer: Layer) -> str:
    values = {name: to_json(value) for name, value in layer.values.items()}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def _models(values: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """The part of models.json below `models`, which must be all there is."""
    for key in values:
        if key != "models":
            raise ConfigError("config.key", file=str(path), key=key)
    models = values.get("models", {})
    if not isinstance(models, dict):
        raise ConfigError("config.object", where=f"{path}: models")
    return models


def _leaves(
    values: object, rows: Mapping[tuple[str, ...], Setting], path: Path, above: tuple[str, ...]
) -> Iterator[tuple[Setting, object]]:
    """The settings in nested objects, matched with the table; what does not match is an error that names its place."""
    if not isinstance(values, dict):
        raise ConfigError("config.object", where=f"{path}: {_dotted(above)}")
    for key, value in values.items():
        inside = {steps[1:]: row for steps, row in rows.items() if steps[0] == key}
        if not inside:
            raise ConfigError("config.key", file=str(path), key=_dotted((*above, key)))
        if () in inside:
            yield inside[()], value
        else:
            yield from _leaves(value, inside, path, (*above, key))


def _put(values: dict[str, Any], steps: tuple[str, ...], value: object) -> None:
    """Set, or with None take out, a value in nested objects; an object left empty goes as well."""
    key, *rest = steps
    if not rest:
        values.pop(key, None)
        if value is not None:
            values[key] = value
        return
    inner = values.setdefault(key, {})
    _put(inner, tuple(rest), value)
    if not inner:
        del values[key]


@cache
def _rows(scope: Scope) -> Mapping[tuple[str, ...], Setting]:
    """The settings by where they stand: in config.json, or below a model."""
    if scope is Scope.GLOBAL:
        return {_steps(row, None): row for row in table().values()}
    return {_steps(row, "")[2:]: row for row in table().values() if row.may_stand_in(scope)}


def _steps(row: Setting, model: str | None) -> tuple[str, ...]:
    steps = tuple(row.path.split("."))
    return steps if model is None else ("models", model, *steps[-2:])


def _dotted(steps: tuple[str, ...]) -> str:
    return ".".join(steps)


def _row(name: str, scope: Scope) -> Setting:
    row = table().get(name)
    if row is None:
        raise ConfigError("config.unknown", name=name)
    if not row.may_stand_in(scope):
        raise ConfigError("config.not_stored", name=name, scope=scope.value)
    return row
