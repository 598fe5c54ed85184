"""`omlx COMMAND …`. Exit status: 0 well, 1 it failed, 2 what was asked for is wrong, 141 nobody reads what it writes.

A command is a module with `add_arguments(parser)` and `run(arguments) -> int`; only the one that is asked for is
imported, so that `omlx models` and `omlx --version` do not wait for mlx. argparse: the flags are rows of a table at
run time, which decorators over function signatures would have to repeat.
"""

from __future__ import annotations

import os
import signal
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from io import TextIOWrapper
from typing import NoReturn, Protocol, cast

from omlx import __version__
from omlx.catalog import sentence
from omlx.cli.environment import settle
from omlx.errors import BadRequest, ConfigError, ModelError, OmlxError

COMMANDS = {
    "serve": "omlx.cli.serve",
    "models": "omlx.cli.models",
    "pull": "omlx.cli.pull",
    "package": "omlx.cli.package",
    "config": "omlx.cli.config",
    "dashboard": "omlx.cli.dashboard",
    "doctor": "omlx.cli.doctor",
    "bench": "omlx.bench.cli",
}

ONLINE = frozenset({"pull"})
_NOBODY_READS = 128 + signal.SIGPIPE
"""What a shell sees of a tool that SIGPIPE has ended."""


class Command(Protocol):
    add_arguments: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], int]


def entry() -> NoReturn:
    """The process. Leaves without tearing the interpreter down: a native thread of mlx that ends meanwhile, and lets
    go of Python objects, would abort it (seen in a third of all stops on a busy machine)."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files need not be text
    os._exit(_status())


def _status() -> int:
    """That of the command, once what it wrote has been read or lies in a pipe."""
    try:
        try:
            return main()
        except SystemExit as ended:  # argparse has shown help, or said what is wrong
            return int(ended.code or 0)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
    except BrokenPipeError:  # whoever read it has gone, as `head` goes
        return _NOBODY_READS


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    argv = sys.argv[1:] if argv is None else list(argv)
    settle(online=argv[:1] != [] and argv[0] in ONLINE)
    parser = ArgumentParser(
        prog="omlx", description=sentence("cli.description", {}), allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=_versions())
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, module in COMMANDS.items():
        text = sentence(f"cli.{name}.help", {})
        subparser = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        if argv and argv[0] == name:
            command = cast(Command, import_module(module))
            command.add_arguments(subparser)
            subparser.set_defaults(run=command.run)
    return _run(parser.parse_args(argv))


def _run(arguments: Namespace) -> int:
    try:
        status: int = arguments.run(arguments)
    except OmlxError as error:
        model = (
            f"{error.params['model']}: "
            if isinstance(error, ModelError) and "model" in error.params
            else ""
        )
        sys.stderr.write(f"omlx: {model}{error.message}\n")
        return 2 if isinstance(error, ConfigError | BadRequest | ModelError) else 1
    except KeyboardInterrupt:
        return 130
    return status


def _versions() -> str:
    parts = []
    for package in ("mlx", "mlx-lm"):
        try:
            parts.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            parts.append(f"{package} missing")
    return f"omlx {__version__} ({', '.join(parts)})"
