"""`python -m lab.bench COMMAND`: `omlx bench` with more to measure, and the pages made from it."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Final

from lab.bench import (
    answers,
    batches,
    clients,
    document,
    kv_bits,
    past_work,
    prefix,
    prefixes,
    recording,
    sampling,
    speculation,
    stages,
    turns,
)
from lab.bench.engine import command as engine
from lab.bench.http import command as http

COMMANDS: Final[dict[str, tuple[ModuleType, str]]] = {
    "engine": (engine, "the engine against mlx-lm, without HTTP, and the host's share of a step"),
    "speculation": (speculation, "omlx bench speculation, and upper bounds and hybrids"),
    "batches": (batches, "plain batches on our caches against mlx-lm's left-padded ones"),
    "kv-bits": (kv_bits, "quantized KV caches: bytes, agreement with unquantized ones, time"),
    "clients": (clients, "clients over HTTP: omlx with and without speculation, other servers"),
    "prefix": (prefix, "prefix caches of omlx and of mlx-lm's server"),
    "http": (http, "the HTTP layer against the engine alone"),
    "prefixes": (prefixes, "first tokens with prefixes in memory and on disk"),
    "recording": (recording, "what prefixes on disk and recorded answers cost while decoding"),
    "sampling": (sampling, "filters without a sort against mlx-lm's"),
    "stages": (stages, "a model in two stages against one process"),
    "answers": (answers, "record answers, for replays of the policy"),
    "past-work": (past_work, "lookups in past answers against those in the request alone"),
    "turns": (turns, "turns after a tool's result, with prewarming and without"),
    "document": (document, "write reports into a page"),
}
"""Modules with `add_arguments(parser)` and `run(args)`, and their help."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status. SIGTERM is handled as an interrupt."""
    parser = argparse.ArgumentParser(prog="python -m lab.bench")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (module, text) in COMMANDS.items():
        module.add_arguments(commands.add_parser(name, help=text))
    args = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    module, _ = COMMANDS[args.command]
    status: int = module.run(args)
    return status


if __name__ == "__main__":
    sys.exit(main())
