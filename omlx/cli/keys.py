"""`omlx keys add|list|revoke`: named API keys, applied at once by a running server."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace

from omlx.catalog import sentence
from omlx.cli.arguments import configured, find_models
from omlx.cli.output import columns
from omlx.models.catalog.catalog import Catalog
from omlx.settings.configuration import LiveConfiguration
from omlx.settings.keys import EVERY_MODEL, KeyFile, NamedKey
from omlx.settings.schema import table


def add_arguments(parser: ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, action in {"add": _add, "list": _list, "revoke": _revoke}.items():
        text = sentence(f"cli.keys.{name}.help", {})
        command = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        command.set_defaults(action=action)
        if name != "list":
            command.add_argument("name", metavar="NAME", help=sentence("cli.keys.name", {}))
        if name == "add":
            models, rate = sentence("cli.keys.models", {}), sentence("cli.keys.rate", {})
            command.add_argument(
                "--models", metavar="PATTERN", nargs="+", default=[EVERY_MODEL], help=models
            )
            command.add_argument("--rate", metavar="N", type=int, help=rate)
        if name == "list":
            text = sentence("cli.models.json", {})
            command.add_argument("--json", action="store_true", help=text)
        command.add_argument("--home", metavar="DIR", help=table()["home"].help)


def run(arguments: Namespace) -> int:
    configuration = configured(arguments)
    file = KeyFile(configuration.current.resolve().settings.home)
    arguments.action(arguments, file, configuration)
    return 0


def _add(arguments: Namespace, file: KeyFile, configuration: LiveConfiguration) -> None:
    """Print the new key alone on standard output, all else on standard error."""
    # The first key closes a server that was open to all.
    opened = configuration.current.resolve().settings.api_key is None and not file.path.exists()
    registry = find_models([], configuration.current).scan()
    unmatched = Catalog(registry, configuration).unmatched(arguments.models)
    key = file.add(arguments.name, arguments.models, arguments.rate)
    for pattern in unmatched:
        _say("keys.no_model", pattern=pattern)
    if opened:
        _say("cli.keys.closed")
    _say("cli.keys.once")
    sys.stdout.write(f"{key}\n")


def _list(arguments: Namespace, file: KeyFile, configuration: LiveConfiguration) -> None:
    keys = file.read()
    if arguments.json:
        records = [key.record() for key in keys]
        sys.stdout.write(json.dumps(records, indent=2, ensure_ascii=False) + "\n")
    elif keys:
        sys.stdout.write(columns([*map(_row, keys)], _head()))
    else:
        _say("cli.keys.none")


def _revoke(arguments: Namespace, file: KeyFile, configuration: LiveConfiguration) -> None:
    file.revoke(arguments.name)
    _say("cli.keys.revoked", name=arguments.name)


def _head() -> tuple[str, ...]:
    return tuple(
        sentence(f"cli.keys.column.{name}", {})
        for name in ("name", "key", "models", "rate", "created")
    )


def _row(key: NamedKey) -> tuple[str, ...]:
    rate = "-" if key.requests_per_minute is None else str(key.requests_per_minute)
    day = key.created.date().isoformat()
    return key.name, f"…{key.ending}", " ".join(key.models), rate, day


def _say(code: str, **params: str) -> None:
    sys.stderr.write(f"omlx: {sentence(code, params)}\n")
