"""The flags of `omlx serve` for a model in stages, and the way to its supervisor."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Final

from omlx.catalog import sentence
from omlx.cli.address import listen
from omlx.cli.arguments import configured
from omlx.cli.hostfile import read_hosts
from omlx.cli.supervisor import GroupOptions, Supervisor
from omlx.errors import ConfigError
from omlx.server.guard import check_exposure
from omlx.telemetry import log

_FLAGS: Final = ("--hosts", "--split", "--stage-layers", "--stage-timeout")


def add_group_flags(parser: ArgumentParser) -> None:
    group = parser.add_argument_group(sentence("cli.serve.group", {}))
    group.add_argument("--hosts", metavar="HOSTS", help=sentence("cli.serve.hosts", {}))
    group.add_argument(
        "--split",
        choices=("pipeline", "tensor"),
        default="pipeline",
        help=sentence("cli.serve.split", {}),
    )
    group.add_argument(
        "--stage-layers", metavar="N,N", type=_counts, help=sentence("cli.serve.stage_layers", {})
    )
    group.add_argument(
        "--stage-timeout",
        metavar="SECONDS",
        type=float,
        default=10.0,
        help=sentence("cli.serve.stage_timeout", {}),
    )
    group.add_argument("--lead", action="store_true", help=argparse.SUPPRESS)


def supervise(arguments: Namespace) -> int:
    """Serve a model in stages until a signal. Raises ConfigError before anything is started."""
    if arguments.model is None:
        raise ConfigError("stage.no_model")
    hosts = read_hosts(arguments.hosts)
    configuration = configured(arguments)
    settings = configuration.current.resolve().settings
    check_exposure(settings.host, settings.api_key)
    options = GroupOptions(
        hosts=hosts,
        command=tuple(without(_FLAGS, sys.argv[2:])),
        model=arguments.model,
        split=arguments.split,
        layers=arguments.stage_layers or (),
        timeout_s=arguments.stage_timeout,
    )
    listening = listen(settings.host, settings.port)
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    log.set_up(settings.home, sys.stderr, level)
    try:
        return Supervisor(options, listening).run()
    finally:
        listening.close()
        log.tear_down()


def refuse_launcher() -> None:
    """Raise ConfigError under `mlx.launch`, which would start a whole server on every rank."""
    if "MLX_RANK" in os.environ:
        raise ConfigError("stage.launcher")


def without(flags: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """Return command-line arguments without `flags` and their values."""
    kept: list[str] = []
    skips = False
    for argument in arguments:
        if skips:
            skips = False
        elif argument in flags:
            skips = True
        elif argument.partition("=")[0] not in flags:
            kept.append(argument)
    return kept


def _counts(text: str) -> tuple[int, ...]:
    return tuple(int(count) for count in text.split(","))
