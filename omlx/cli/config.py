"""`omlx config get|set|unset|list|path`: the settings that are kept in the home folder, for all models or for one."""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable

from omlx.catalog import sentence
from omlx.cli import running
from omlx.cli.columns import columns
from omlx.cli.configured import configured
from omlx.errors import ConfigError, ModelError, NotFound
from omlx.models.catalog.catalog import Catalog
from omlx.models.catalog.discovery import discover
from omlx.models.package.compatibility import check_draft
from omlx.models.package.package import usable_package
from omlx.settings.configuration import LiveConfiguration
from omlx.settings.layer import Source
from omlx.settings.parse import parse, to_json
from omlx.settings.resolve import Resolution
from omlx.settings.schema import Scope, Setting, Value, table
from omlx.settings.store import Store

_HIDDEN = "********"


def add_arguments(parser: ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions: dict[str, Callable[[Namespace, LiveConfiguration], None]] = {
        "get": _get,
        "set": _set,
        "unset": _unset,
        "list": _list,
        "path": _path,
    }
    for name, action in actions.items():
        text = sentence(f"cli.config.{name}.help", {})
        command = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        command.set_defaults(action=action)
        if name in ("get", "set", "unset"):
            command.add_argument("name", metavar="NAME")
        if name == "set":
            command.add_argument("value", metavar="VALUE")
        if name == "list":
            command.add_argument(
                "--json", action="store_true", help=sentence("cli.models.json", {})
            )
        command.add_argument("--model", metavar="ID", help=sentence("cli.config.model", {}))
        command.add_argument("--home", metavar="DIR", help=table()["home"].help)


def run(arguments: Namespace) -> int:
    arguments.action(arguments, configured(arguments))
    return 0


def _get(arguments: Namespace, configuration: LiveConfiguration) -> None:
    row = _row(arguments.name)
    resolution = _resolution(arguments, configuration)
    sys.stdout.write(f"{_shown(row, resolution[row.name].value)}\n")


def _set(arguments: Namespace, configuration: LiveConfiguration) -> None:
    row = _row(arguments.name)
    value = parse(row, arguments.value, row.name)
    model = _model(arguments, configuration, new=True)
    if row.name in ("alias", "draft_model"):
        _check_name(row.name, str(value), model, configuration)
    configuration.patch({row.name: value}, model)
    resolution = _resolution(arguments, configuration)
    source = resolution.sources[row.name]
    if source is not (Source.GLOBAL if arguments.model is None else Source.MODEL):
        params = {
            "name": row.name,
            "value": _shown(row, resolution[row.name].value),
            "source": source.value,
        }
        sys.stderr.write(f"omlx: {sentence('cli.config.overridden', params)}\n")
    _tell_of_server(row, configuration)


def _check_name(
    setting: str, name: str, model: str | None, configuration: LiveConfiguration
) -> None:
    """What neither the table nor the store can judge. Raises ConfigError, BadRequest."""
    registry = discover(configuration.current.resolve().settings, os.environ)
    if setting == "draft_model":
        check_draft(
            name,
            registry.find(model) if model is not None and model in registry else None,
            registry,
        )
    elif model is not None:
        Catalog(registry, configuration).check_alias(name, model)


def _unset(arguments: Namespace, configuration: LiveConfiguration) -> None:
    row = _row(arguments.name)
    configuration.patch({row.name: None}, _model(arguments, configuration))
    _tell_of_server(row, configuration)


def _tell_of_server(row: Setting, configuration: LiveConfiguration) -> None:
    """Say so if one runs that does not take this up by itself."""
    if row.applies_live or (url := running.find(_store(configuration).home)) is None:
        return
    sys.stderr.write(f"omlx: {sentence('cli.config.restart', {'url': url})}\n")


def _list(arguments: Namespace, configuration: LiveConfiguration) -> None:
    resolution = _resolution(arguments, configuration)
    rows = [
        row for row in table().values() if arguments.model is None or row.allowed_in(Scope.MODEL)
    ]
    if arguments.json:
        record = {row.name: _record(row, resolution) for row in rows}
        sys.stdout.write(json.dumps(record, indent=2, ensure_ascii=False) + "\n")
        return
    shown = [
        (row.name, _shown(row, resolution[row.name].value), resolution.sources[row.name].value)
        for row in rows
    ]
    sys.stdout.write(columns(shown))


def _path(arguments: Namespace, configuration: LiveConfiguration) -> None:
    sys.stdout.write(f"{_store(configuration).path(arguments.model)}\n")


def _record(row: Setting, resolution: Resolution) -> dict[str, object]:
    value = resolution[row.name].value
    shown = _HIDDEN if row.meta.secret and value is not None else to_json(value)
    return {"value": shown, "source": resolution.sources[row.name].value}


def _resolution(arguments: Namespace, configuration: LiveConfiguration) -> Resolution:
    """Every setting as it is now; for a model that is here, with what its package declares."""
    model = _model(arguments, configuration)
    if model is None:
        return configuration.current.resolve()
    registry = discover(configuration.current.resolve().settings, os.environ)
    package = [usable_package(registry.find(model).path).layer] if model in registry else []
    return configuration.current.resolve(model, *package)


def _model(
    arguments: Namespace, configuration: LiveConfiguration, *, new: bool = False
) -> str | None:
    """The id that is meant: of a model that is here, usable or not, or, unless `new` settings are to be made, that has
    settings."""
    if arguments.model is None:
        return None
    try:
        return (
            discover(configuration.current.resolve().settings, os.environ).find(arguments.model).id
        )
    except ModelError as error:  # it is here; settings may be what it lacks
        return str(error.params["model"])
    except NotFound:
        if new or arguments.model not in configuration.current.stored.models:
            raise
        return str(arguments.model)


def _shown(row: Setting, value: Value) -> str:
    if value is None or value == ():
        return ""
    if row.meta.secret:
        return _HIDDEN
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _row(name: str) -> Setting:
    """The setting called `name`, with dashes or underscores."""
    row = table().get(name.replace("-", "_"))
    if row is None:
        raise ConfigError("config.unknown", name=name)
    return row


def _store(configuration: LiveConfiguration) -> Store:
    assert configuration.store is not None
    return configuration.store
