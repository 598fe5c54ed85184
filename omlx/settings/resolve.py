"""Which of several sources decides a setting, and where its value came from.

A source is a layer: the values it sets, and nothing about the rest. Layers of the two files come
from the store, those of packages are made elsewhere; all go through the same `resolve`.
"""

from __future__ import annotations

from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from omlx.errors import ConfigError
from omlx.settings.layer import Layer, Source, check_bounds
from omlx.settings.parse import parse
from omlx.settings.schema import Group, Scope, Setting, Settings, Value, table

_METAVARS = {int: "N", dict: "JSON"}


@dataclass(frozen=True, slots=True)
class Resolved:
    value: Value
    source: Source


@dataclass(frozen=True, slots=True)
class Resolution:
    """All settings, typed, and the source of each."""

    settings: Settings
    sources: Mapping[str, Source]

    def __getitem__(self, name: str) -> Resolved:
        return Resolved(getattr(self.settings, name), self.sources[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.sources)


def resolve(layers: Iterable[Layer] = ()) -> Resolution:
    """The values of all settings. The order of `layers` does not matter; their sources do.

    Raises ConfigError if a layer sets a name that is not in the table.
    """
    values: dict[str, Value] = {}
    sources = dict.fromkeys(table(), Source.BUILT_IN)
    for layer in sorted(layers, key=lambda layer: layer.source.rank, reverse=True):
        for name, value in layer.values.items():
            if name not in sources:
                raise ConfigError("config.unknown", name=name)
            values[name], sources[name] = value, layer.source
    checked: dict[str, Any] = values
    return Resolution(Settings(**checked), sources)


def environment_layer(environ: Mapping[str, str]) -> Layer:
    """What the variables of the environment set. An empty variable sets nothing. Raises
    ConfigError.
    """
    values = {
        setting.name: parse(setting, environ[setting.variable], setting.variable)
        for setting in table().values()
        if setting.allowed_in(Scope.ENVIRONMENT) and environ.get(setting.variable)
    }
    layer = Layer(Source.ENVIRONMENT, values)
    check_bounds(layer, "OMLX_DRAFT_…")
    return layer


def add_flags(parser: ArgumentParser, groups: Iterable[Group] = tuple(Group)) -> None:
    """Give `parser` a flag for each setting of `groups`. A flag that is not given leaves no trace."""
    for group in groups:
        section = parser.add_argument_group(group.value)
        for setting in table().values():
            if setting.meta.group is group and setting.allowed_in(Scope.CLI):
                _add_flag(section, setting)


def _add_flag(section: Any, setting: Setting) -> None:
    shown = {"dest": setting.name, "default": None, "help": _help(setting)}
    dashed = f"--{setting.name.replace('_', '-')}"
    if setting.default is True:
        section.add_argument(dashed, action=BooleanOptionalAction, **shown)
    elif setting.kind is bool:
        section.add_argument(dashed, action="store_true", **shown)
    else:
        metavar = (
            "|".join(setting.choices) or setting.meta.metavar or _METAVARS.get(setting.kind, "X")
        )
        section.add_argument(
            dashed, action="append" if setting.repeatable else "store", metavar=metavar, **shown
        )


def _help(setting: Setting) -> str:
    shown = (
        ""
        if setting.default is None or setting.kind is bool or setting.repeatable
        else f" (default: {setting.default})"
    )
    return f"{setting.help}{shown}".replace("%", "%%")


def cli_layer(arguments: Namespace) -> Layer:
    """What the flags of a parsed command line set. Raises ConfigError."""
    given = {
        name: value
        for name, value in vars(arguments).items()
        if name in table() and value is not None
    }
    values = {
        name: value if isinstance(value, bool) else parse(table()[name], value, table()[name].flag)
        for name, value in given.items()
    }
    layer = Layer(Source.CLI, values)
    check_bounds(layer, "--draft-…")
    return layer
