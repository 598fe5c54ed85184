"""`python -m lab.bench COMMAND`: the commands, each in its own module.

Only the given command's module is imported: some need what tests need.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

from omlx.cli import set_environment
from omlx.cli.main import run_process

COMMANDS: Final = {
    "engine": ("engine.command", "the engine against mlx-lm, without HTTP; the host's share"),
    "exact": ("exact", "speculation against plain decoding, token by token"),
    "speculation": ("speculation", "every mode against plain decoding; upper bounds, hybrids"),
    "machine": ("machine", "a page of measurements of this machine, within ten minutes"),
    "batches": ("batches", "plain batches on our caches against mlx-lm's left-padded ones"),
    "kv-bits": ("kv_bits", "quantized KV caches: bytes, agreement with unquantized ones, time"),
    "clients": ("clients", "clients over HTTP: omlx with and without speculation, other servers"),
    "prefix": ("prefix", "prefix caches of omlx and of mlx-lm's server"),
    "http": ("http.command", "the HTTP layer against the engine alone"),
    "prefixes": ("prefixes", "first tokens with prefixes in memory and on disk"),
    "recording": ("recording", "what prefixes on disk and recorded answers cost while decoding"),
    "sampling": ("sampling", "filters without a sort against mlx-lm's"),
    "stages": ("stages", "a model in two stages against one process"),
    "answers": ("answers", "record answers, for replays of the policy"),
    "past-work": ("past_work", "lookups in past answers against those in the request alone"),
    "turns": ("turns", "turns after a tool's result, with prewarming and without"),
    "document": ("document", "write reports into a page"),
}
"""Modules with `add_arguments(parser)` and `run(args)`, and their help."""

ALIASES: Final = {"speculation": ("spec",)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status. SIGTERM is handled as an interrupt."""
    args = parsed(sys.argv[1:] if arguments is None else arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    set_environment(online=False)
    try:
        status: int = args.run(args)
    except KeyboardInterrupt:
        return 130
    return status


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse a command line; `run` of the result is the command's function."""
    parser = argparse.ArgumentParser(prog="python -m lab.bench")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (place, text) in COMMANDS.items():
        aliases = ALIASES.get(name, ())
        command = commands.add_parser(name, help=text, aliases=aliases)
        if {name, *aliases} & set(arguments[:1]):
            module = import_module(f"lab.bench.{place}")
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run_process(main)
