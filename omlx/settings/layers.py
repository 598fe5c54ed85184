"""Layers of settings: the values of each source, and the deciding source of each setting.

pydantic-settings is not used: its sources do not report which of them set a value, its help and
errors differ from ours, and its import would add half to the start of `omlx config`.
"""

from __future__ import annotations

from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from omlx.draft_length import DraftLength
from omlx.errors import ConfigError
from omlx.settings.parse import parse
from omlx.settings.schema import Group, Scope, Setting, Settings, Value, table

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
    options: dict[str, Any] = {"dest": setting.name, "default": None, "help": _help(setting)}
    if setting.default is True:
        options["action"] = BooleanOptionalAction
    elif setting.kind is bool:
        options["action"] = "store_true"
    else:
        metavar = "|".join(setting.choices) or setting.meta.metavar
        options["metavar"] = metavar or _METAVARS.get(setting.kind, "X")
        options["action"] = "append" if setting.repeatable else "store"
    section.add_argument(f"--{setting.name.replace('_', '-')}", **options)


def _help(setting: Setting) -> str:
    text = setting.help
    if setting.default is not None and setting.kind is not bool and not setting.repeatable:
        text += f" (default: {setting.default})"
    return text.replace("%", "%%")
