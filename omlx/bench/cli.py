"""`omlx bench COMMAND`: the commands, each in its own module."""

from __future__ import annotations

import argparse
import signal
from types import ModuleType
from typing import Final

from omlx.bench import exact, speculation

COMMANDS: Final[dict[str, tuple[ModuleType, str, tuple[str, ...]]]] = {
    "speculation": (speculation, "measure speculation against plain decoding", ("spec",)),
    "exact": (exact, "compare speculation with plain decoding, token by token", ()),
}
"""Modules with `add_arguments(parser)` and `run(args)`, their help, and aliases."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="bench", metavar="COMMAND", required=True)
    for name, (module, text, aliases) in COMMANDS.items():
        command = commands.add_parser(name, help=text, aliases=aliases)
        module.add_arguments(command)
        command.set_defaults(run_benchmark=module.run)


def run(args: argparse.Namespace) -> int:
    """Run a benchmark and return its exit status.

    SIGTERM acts as an interrupt: results so far are reported, and servers stopped.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    status: int = args.run_benchmark(args)
    return status
