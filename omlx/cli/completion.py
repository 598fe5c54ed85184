"""`omlx completion bash|zsh|fish`: a script that completes commands, flags, models, paths."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Mapping
from typing import Any, Final

import shtab

from omlx.catalog import sentence
from omlx.cli.main import build_parser

SHELLS: Final = ("bash", "zsh", "fish")
_IDS: Final = "omlx models --ids 2>/dev/null"
_OF_COMMAND: Final[dict[str, Any]] = {**shtab.cmd(_IDS)}
# shtab's own form for zsh runs the command when the script is read, once for each argument.
_MODELS: Final = {
    **_OF_COMMAND,
    "zsh": "_omlx_models",
    "preamble": {
        **_OF_COMMAND["preamble"],
        "zsh": f'_omlx_models() {{ local -a ids=(${{(f)"$({_IDS})"}}); compadd -a ids }}\n',
    },
}
_COMPLETED: Final[Mapping[str, shtab.CompleteType]] = {
    "MODEL": _MODELS,
    "ID": _MODELS,
    "DRAFT": _MODELS,
    "DIR": shtab.DIRECTORY,
    "FILE": shtab.FILE,
}
"""Completion of an argument's value, by its metavar."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help=sentence("cli.completion.shell", {}))


def run(arguments: Namespace) -> int:
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
