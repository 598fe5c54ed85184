"""`omlx COMMAND …`. Exit status: 0 success, 1 failure, 2 invalid, 130 interrupted, 141 SIGPIPE.

A command is a function; `NAME_arguments` adds its arguments. Only the given command's module is
imported: `omlx models` does not wait for mlx. argparse, because the flags are rows of a table at
run time. `omlx completion` completes commands, flags, models and paths.
"""

from __future__ import annotations

import os
import signal
import sys
from argparse import ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from io import TextIOWrapper
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Final, NoReturn

import shtab

from omlx import __version__
from omlx.catalog import escaped, sentence
from omlx.cli import installed, set_environment
from omlx.errors import BadRequest, ConfigError, ModelError, OmlxError, StageError

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

COMMANDS = {
    "serve": "omlx.cli.serve.command:run",
    "stage": "omlx.cli.stage.follower:run",
    "run": "omlx.cli.run.command:run",
    "ps": "omlx.cli.servers:ps",
    "stop": "omlx.cli.servers:stop",
    "models": "omlx.cli.models:models",
    "pull": "omlx.cli.pull:run",
    "rm": "omlx.cli.models:rm",
    "package": "omlx.cli.package:run",
    "config": "omlx.cli.config:config",
    "keys": "omlx.cli.config:keys",
    "launch": "omlx.cli.servers:launch",
    "service": "omlx.cli.service:service",
    "dashboard": "omlx.cli.servers:dashboard",
    "session": "omlx.cli.servers:session",
    "logs": "omlx.cli.service:logs",
    "doctor": "omlx.cli.doctor:run",
    "verify": "omlx.cli.verify:run",
    "bench": "omlx.cli.bench:run",
    "completion": "omlx.cli.main:completion",
}
"""The function of each command; `NAME_arguments` beside a function `NAME` adds the arguments."""

MOVED: Final = {
    "bench exact": "python -m lab.bench exact",
    "bench spec": "python -m lab.bench speculation",
    "bench speculation": "python -m lab.bench speculation",
    "doctor --bench": "python -m lab.bench machine",
    "verify --server": "python -m lab.conformance",
}
"""Tools of the checkout, by the command and word they have replaced."""

ONLINE = frozenset({"pull"})
_BROKEN_PIPE = 128 + signal.SIGPIPE
"""Exit status — the convention of shells for a process ended by SIGPIPE."""


class Parser(ArgumentParser):
    """An argument parser whose help raises on a closed pipe."""

    def print_help(self, file: SupportsWrite[str] | None = None) -> None:
        (file or sys.stdout).write(self.format_help())


def entry() -> NoReturn:
    run_process(main)


def run_process(command: Callable[[], int | None]) -> NoReturn:
    """Run a command, and exit with its status, without interpreter teardown.

    During teardown, a native thread of mlx would release Python objects and abort the process. A
    closed pipe ends the command quietly, like other programs.
    """
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files need not be text
    os._exit(_status(command))


def _status(command: Callable[[], int | None]) -> int:
    """Run the command and return its exit status, with the output flushed."""
    try:
        try:
            return command() or 0
        except SystemExit as ended:  # argparse has printed help or an error
            return int(ended.code or 0)
        finally:
            sys.stdout.flush()
            _flush_errors()
    except BrokenPipeError:  # the reader has ended, as `head` does
        return _BROKEN_PIPE


def _flush_errors() -> None:
    """Flush standard error. A full disk leaves the exit status unchanged."""
    try:
        sys.stderr.flush()
    except BrokenPipeError:
        raise
    except OSError:
        return


def main(argv: Sequence[str] | None = None) -> int:
    if argv is None:
        argv = sys.argv[1:]
    name = argv[0] if argv else ""
    set_environment(online=name in ONLINE)
    parser = build_parser([name])
    if not argv or name == "help":
        parser.print_help()
        return 0
    for word in argv[1:2] if name == "bench" else argv[1:]:
        old = f"{name} {word.partition('=')[0]}"
        if old in MOVED:
            moved = sentence("cli.moved", {"old": f"omlx {old}", "new": MOVED[old]})
            sys.stderr.write(f"omlx: {moved}\n")
            return 2
    if name not in COMMANDS and not name.startswith("-"):
        similar = get_close_matches(name, COMMANDS, n=1)
        params = {"command": escaped(name), "similar": ", ".join(similar)}
        unknown = sentence("cli.similar" if similar else "cli.unknown", params)
        sys.stderr.write(f"omlx: {unknown}\n")
        return 2
    return _run(_parsed(parser, argv))


def _parsed(parser: Parser, argv: Sequence[str]) -> Namespace:
    """Parse a command line. Words of a prompt may stand behind flags.

    argparse gives an optional positional no words behind the first flag.
    """
    arguments, rest = parser.parse_known_args(argv, Namespace(words=argv))
    if rest and ("prompt" not in arguments or rest[0].startswith("-")):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        arguments.prompt += rest
    return arguments


def build_parser(complete: Collection[str] = COMMANDS) -> Parser:
    """Return the parser of the command line; the commands in `complete` have their arguments.

    Imports the modules of those commands. `words` of a parsed line are the line itself.
    """
    parser = Parser(prog="omlx", description=sentence("cli.description", {}), allow_abbrev=False)
    parser.add_argument("--version", action="version", version=_versions())
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command, place in COMMANDS.items():
        text = sentence(f"cli.{command}.help", {})
        subparser = commands.add_parser(command, help=text, description=text, allow_abbrev=False)
        if command in complete:
            resolve_name(f"{place}_arguments")(subparser)
            subparser.set_defaults(run=resolve_name(place))
    return parser


def _run(arguments: Namespace) -> int:
    try:
        status: int = arguments.run(arguments)
    except OmlxError as error:
        message = error.message
        if isinstance(error, ModelError) and "model" in error.params:
            message = f"{error.params['model']}: {message}"
        sys.stderr.write(f"omlx: {escaped(message)}\n")
        if isinstance(error, ConfigError | BadRequest | ModelError | StageError):
            return 2
        return 1
    except KeyboardInterrupt:
        return 130
    return status


def _versions() -> str:
    parts = [f"{package} {installed(package)}" for package in ("mlx", "mlx-lm")]
    return f"omlx {__version__} ({', '.join(parts)})"


SHELLS: Final = ("bash", "zsh", "fish")
_LIST_IDS: Final = "omlx models --ids 2>/dev/null"
_OF_COMMAND: Final[dict[str, Any]] = {**shtab.cmd(_LIST_IDS)}
# shtab's own form for zsh runs the command when the script is read, once for each argument.
_MODEL_IDS: Final = {
    **_OF_COMMAND,
    "zsh": "_omlx_models",
    "preamble": {
        **_OF_COMMAND["preamble"],
        "zsh": f'_omlx_models() {{ local -a ids=(${{(f)"$({_LIST_IDS})"}}); compadd -a ids }}\n',
    },
}
_COMPLETED: Final[Mapping[str, shtab.CompleteType]] = {
    "MODEL": _MODEL_IDS,
    "ID": _MODEL_IDS,
    "DRAFT": _MODEL_IDS,
    "DIR": shtab.DIRECTORY,
    "FILE": shtab.FILE,
}
"""Completion of an argument's value, by its metavar."""


def completion_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help=sentence("cli.completion.shell", {}))


def completion(arguments: Namespace) -> int:
    parser = build_parser()
    _declare(parser)
    sys.stdout.write(shtab.complete(parser, shell=arguments.shell) + "\n")
    return 0


def _declare(parser: ArgumentParser) -> None:
    """Declare how values of a parser's arguments, and of its commands', are completed."""
    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            for command in action.choices.values():
                _declare(command)
        elif isinstance(action.metavar, str) and action.metavar in _COMPLETED:
            action.complete = _COMPLETED[action.metavar]  # type: ignore[attr-defined]  # shtab reads it
