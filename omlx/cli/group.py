"""The flags of `omlx serve` for a model in stages, and its supervisor by them."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from contextlib import suppress
from typing import Final

from omlx.catalog import sentence
from omlx.cli.hostfile import read_hosts
from omlx.cli.supervisor import Supervisor
from omlx.engine.stage.order import Order
from omlx.errors import ConfigError
from omlx.settings.layers import cli_layer, flags_of
from omlx.settings.schema import Group

TIMEOUT_S: Final = 10.0
LEAST_TIMEOUT_S: Final = 1
"""Two beats."""
MOST_TIMEOUT_S: Final = 3600


def add_group_flags(parser: ArgumentParser) -> None:
    group = parser.add_argument_group(sentence("cli.serve.group", {}))
    group.add_argument("--hosts", metavar="HOSTS", help=sentence("cli.serve.hosts", {}))
    group.add_argument(
        "--split", choices=("pipeline", "tensor"), help=sentence("cli.serve.split", {})
    )
    group.add_argument(
        "--stage-layers", metavar="N,N", type=_counts, help=sentence("cli.serve.stage_layers", {})
    )
    group.add_argument(
        "--stage-timeout",
        metavar="SECONDS",
        type=_seconds,
        help=sentence("cli.serve.stage_timeout", {}),
    )
    group.add_argument("--lead", action="store_true", help=argparse.SUPPRESS)


def supervisor(arguments: Namespace, listening: socket.socket) -> Supervisor:
    """Return what serves a model in stages. Raises ConfigError; nothing is started."""
    hosts = read_hosts(arguments.hosts)
    order = Order(
        tuple(host.ssh for host in hosts.hosts),
        backend=hosts.backend,
        rdma=tuple(host.rdma for host in hosts.hosts),
        tensor=arguments.split == "tensor",
        layers=arguments.stage_layers or (),
        timeout_s=arguments.stage_timeout or TIMEOUT_S,
    )
    search = flags_of(cli_layer(arguments), Group.MODELS)
    return Supervisor(hosts, order, sys.argv[2:], arguments.model, listening, search)


def refuse_misuse(arguments: Namespace) -> None:
    """Raise ConfigError under `mlx.launch`, which would start a whole server on every rank, and for
    flags that do not go together.
    """
    if "MLX_RANK" in os.environ:
        raise ConfigError("stage.launcher")
    if arguments.hosts is not None and arguments.model is None:
        raise ConfigError("stage.no_model")
    if arguments.split == "tensor" and arguments.stage_layers:
        raise ConfigError("stage.tensor_layers")
    for flag in ("split", "stage_layers", "stage_timeout"):
        if arguments.hosts is None and getattr(arguments, flag) is not None:
            raise ConfigError("stage.no_hosts", flag=f"--{flag.replace('_', '-')}")


def _counts(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(count) for count in text.split(","))
    except ValueError:
        raise ArgumentTypeError(sentence("cli.serve.counts", {"value": text})) from None


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if LEAST_TIMEOUT_S <= (seconds := float(text)) <= MOST_TIMEOUT_S:
            return seconds
    values = {"value": text, "least": LEAST_TIMEOUT_S, "most": MOST_TIMEOUT_S}
    raise ArgumentTypeError(sentence("cli.serve.seconds", values))
