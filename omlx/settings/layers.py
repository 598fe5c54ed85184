"""Layers of settings: the values of each source, parsed, and the deciding source of each setting.

pydantic-settings is not used: its sources do not report which of them set a value, its help and
errors differ from ours, and its import would add half to the start of `omlx config`. Every
ConfigError names where the value was set.
"""

from __future__ import annotations

import json
import os
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from omlx.draft_length import DraftLength
from omlx.errors import ConfigError
from omlx.settings.schema import Group, Scope, Setting, Settings, Value, table
from omlx.settings.types import SHOWN, Form, shown, size_text

_METAVARS: Final = {int: "N", dict: "JSON"}


class Source(StrEnum):
    """Source of a value; earlier ones take precedence.

    The profile comes first: the request names it. A request's own fields precede all, and are no
    layer.
    """

    PROFILE = "profile"
    CLI = "cli"
    ENVIRONMENT = "environment"
    MODEL = "model"
    GLOBAL = "global"
    PACKAGE = "package"
    BUILT_IN = "built_in"

    @property
    def rank(self) -> int:
        # 0 is the highest precedence.
        return list(Source).index(self)


@dataclass(frozen=True, slots=True)
class Layer:
    source: Source
    values: Mapping[str, Value]


def check_bounds(layer: Layer, where: str) -> None:
    """Raise ConfigError if the draft lengths of a source contradict each other.

    Between two sources a contradiction is no error: higher precedence wins.
    """
    contradiction = DraftLength.parse(layer.values).contradiction
    if contradiction is not None:
        raise ConfigError("config.bounds", where=where, **contradiction._asdict())


@dataclass(frozen=True, slots=True)
class Resolved:
    value: Value
    source: Source


@dataclass(frozen=True, slots=True)
class Resolution:
    settings: Settings
    sources: Mapping[str, Source]

    def __getitem__(self, name: str) -> Resolved:
        return Resolved(getattr(self.settings, name), self.sources[name])


def resolve(layers: Iterable[Layer] = ()) -> Resolution:
    """Resolve all settings from layers in any order. Raises ConfigError for an unknown name."""
    values: dict[str, Any] = {}
    sources = dict.fromkeys(table(), Source.BUILT_IN)
    for layer in sorted(layers, key=lambda layer: layer.source.rank, reverse=True):
        for name, value in layer.values.items():
            if name not in sources:
                raise ConfigError("config.unknown", name=name)
            values[name], sources[name] = value, layer.source
    return Resolution(Settings().model_copy(update=values), sources)


def environment_layer(environ: Mapping[str, str]) -> Layer:
    """Return the layer of the environment; an empty variable sets nothing. Raises ConfigError."""
    values = {}
    for setting in table().values():
        raw = environ.get(setting.variable)
        if raw and setting.allowed_in(Scope.ENVIRONMENT):
            values[setting.name] = parse(setting, raw, setting.variable)
    layer = Layer(Source.ENVIRONMENT, values)
    check_bounds(layer, "OMLX_DRAFT_…")
    return layer


def cli_layer(arguments: Namespace) -> Layer:
    """Return the layer of a parsed command line. Raises ConfigError."""
    values: dict[str, Value] = {}
    for name, raw in vars(arguments).items():
        if name in table() and raw is not None:
            setting = table()[name]
            if not isinstance(raw, bool):
                raw = parse(setting, raw, setting.flag)
            values[name] = raw
    layer = Layer(Source.CLI, values)
    check_bounds(layer, "--draft-…")
    return layer


def flags_of(layer: Layer, group: Group) -> list[str]:
    """Return the flags that set a layer's values of `group` in another process."""
    flags = []
    for name, value in layer.values.items():
        if table()[name].meta.group is not group:
            continue
        dashed = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{dashed}" if value else f"--no-{dashed}")
            continue
        for one in value if isinstance(value, tuple) else (value,):
            flags.append(f"--{dashed}={one}")
    return flags


def add_flags(parser: ArgumentParser, groups: Iterable[Group] = tuple(Group)) -> None:
    """Add a flag for each setting of `groups`. A missing flag leaves None."""
    for group in groups:
        section = parser.add_argument_group(group.value)
        for setting in table().values():
            if setting.meta.group is group and setting.allowed_in(Scope.CLI):
                _add_flag(section, setting)


def _add_flag(section: Any, setting: Setting) -> None:
    text = setting.help
    if setting.default is not None and setting.kind is not bool and not setting.repeatable:
        text += f" (default: {setting.default})"
    text = text.replace("%", "%%")
    options: dict[str, Any] = {"dest": setting.name, "default": None, "help": text}
    if setting.default is True:
        options["action"] = BooleanOptionalAction
    elif setting.kind is bool:
        options["action"] = "store_true"
    else:
        metavar = "|".join(setting.choices) or setting.meta.metavar
        options["metavar"] = metavar or _METAVARS.get(setting.kind, "X")
        options["action"] = "append" if setting.repeatable else "store"
    section.add_argument(f"--{setting.name.replace('_', '-')}", **options)


_SWITCH: Final = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}

_NO_TEXT: Final = (Form.NUMBER, Form.SWITCH, Form.OBJECT)


def parse(setting: Setting, raw: str | Sequence[str], where: str) -> Value:
    """Parse the text of a flag or variable; `where` is its name.

    A repeatable setting takes a list, or one string split at the path separator (files) or at
    commas. Raises ConfigError.
    """
    if "\0" in "".join(raw):
        raise ConfigError("config.nul", where=where)
    if setting.repeatable:
        if isinstance(raw, str):
            separator = os.pathsep if setting.kind is Path else ","
            raw = [part for part in raw.split(separator) if part.strip()]
        return from_json(setting, list(raw), where)
    text = raw if isinstance(raw, str) else raw[-1]
    try:
        value = _json_value(setting, text, where)
    except ValueError:
        raise _mismatch(setting, text, where, text) from None
    return from_json(setting, value, where, text)


def from_json(setting: Setting, raw: object, where: str, text: str | None = None) -> Value:
    """Validate a JSON value. Types are strict: a number is no string, 1 is not true.

    A size may also be a string (`512MB`). `text` is the value as written, for the error. Raises
    ConfigError.
    """
    texts = [raw]
    if setting.repeatable:
        texts = raw if isinstance(raw, list) else []
    if setting.form not in _NO_TEXT and any("\0" in part for part in texts if type(part) is str):
        raise ConfigError("config.nul", where=where)
    if raw is None:  # valid for pydantic: the default of many settings
        raise _mismatch(setting, raw, where, text)
    try:
        value: Value = getattr(Settings.model_validate({setting.name: raw}), setting.name)
        return value
    except ConfigError as error:
        error.params["where"] = where
        raise
    except ValidationError:
        raise _mismatch(setting, raw, where, text) from None


def to_json(value: Value) -> object:
    """Return the JSON form of a value, as stored in files; `from_json` is the inverse."""
    if isinstance(value, tuple):
        return [str(part) for part in value]
    if isinstance(value, Path):
        return str(value)
    return value


def _json_value(setting: Setting, text: str, where: str) -> object:
    """Convert text to a JSON value by the setting's form. Raises ConfigError, ValueError."""
    match setting.form:
        case Form.SWITCH:
            if (word := text.strip().lower()) not in _SWITCH:
                raise ConfigError("config.switch", where=where, value=text)
            return _SWITCH[word]
        case Form.OBJECT:
            return json.loads(text)
        case Form.NUMBER:
            return int(text) if setting.kind is int else float(text)
        case _:
            return text


def _mismatch(setting: Setting, raw: object, where: str, text: str | None) -> ConfigError:
    """Return the error for a value of another type, or out of range."""
    value, low, high = shown(raw), setting.meta.low, setting.meta.high
    match setting.form:
        case Form.LINES | Form.MAP:
            return ConfigError("config.list", where=where, value=value)
        case Form.OBJECT:
            return ConfigError("config.object_text", where=where, value=value)
        case Form.SWITCH:
            return ConfigError("config.boolean", where=where, value=value)
        case Form.CHOICE if isinstance(raw, str):
            choices = ", ".join(setting.choices)
            return ConfigError("config.choice", where=where, value=raw, choices=choices)
        case Form.NUMBER | Form.SIZE:
            if isinstance(raw, str) or type(raw) in (int, setting.kind):
                value = text or str(raw)[:SHOWN]
            if setting.form is Form.SIZE:
                bounds = {"low": size_text(int(low)), "high": size_text(int(high))}
                return ConfigError("config.size_range", where=where, value=value, **bounds)
            code = "config.int" if setting.kind is int else "config.float"
            return ConfigError(code, where=where, value=value, low=low, high=high)
        case _:
            return ConfigError("config.string", where=where, value=value)
