"""`omlx serve MODEL --hosts …`: starts a leader and its followers, and restarts them.

The supervisor keeps the listening socket, so clients are not refused during a restart. A broken
group cannot be repaired within its processes: when a process ends, all end, and all restart after a
growing pause. Imports no mlx.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Final

from omlx.catalog import sentence
from omlx.cli.stage.processes import (
    GRACE_S,
    JOINED,
    REFUSED,
    SERVING,
    SILENT,
    Hosts,
    read_hosts,
    reserve_port,
    start,
)
from omlx.engine.stage.link import Order
from omlx.errors import ConfigError, OmlxError, StageError
from omlx.settings.layers import cli_layer, flags_of
from omlx.settings.schema import Group

TIMEOUT_S: Final = 10.0
LEAST_TIMEOUT_S: Final = 1
"""Seconds — two beats."""
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
    """Return the supervisor of a model in stages. Raises ConfigError; starts nothing."""
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
    """Raise ConfigError for contradictory flags, and under `mlx.launch`.

    The latter would start a whole server on every rank.
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


PAUSES_S: Final = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Seconds before each restart — the last repeats; a group that served starts over."""

MAX_STARTS: Final = 5
"""Starts of a group that never serves — five failures are no coincidence."""

SERVED_S: Final = 60.0
"""Seconds of serving — after them, a failure counts as the first."""

_POLL_S: Final = 0.1
_FINAL: Final = (REFUSED, 141)
"""Exit statuses without a restart: failures that the user must fix, closed standard output."""

_NOT_STARTED: Final = (126, 127, 255)
"""Exit statuses of ssh and shells for a missing host or command."""


@dataclass(slots=True)
class Supervisor:
    """Runs one group at a time until a signal.

    `order` is common to all processes and starts, except for fields renewed at each start.
    `command`: arguments of `omlx serve`. Followers serve `model`; local ones search by `search`.
    """

    hosts: Hosts
    order: Order
    command: Sequence[str]
    model: str
    listening: socket.socket
    search: Sequence[str] = ()
    served_once: bool = False
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _stopping: bool = False  # set by a signal

    def run(self) -> int:
        """Return the exit status: 0 after a signal, 2 for failures that the user must fix.

        Raises StageError for failures that a restart would not change.
        """
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)
        failures = 0
        while not self._stopping:
            started = time.monotonic()
            try:
                status = self._run_group()
            except OmlxError as error:  # a host that is off, a cable that is out
                if not self.served_once:
                    raise
                status = 1
                sys.stderr.write(f"omlx: {error.message}\n")
            if self._stopping or (status in _FINAL and not self.served_once):
                return status
            if self.served_once and time.monotonic() - started > SERVED_S:
                failures = 0
            pause = PAUSES_S[min(failures, len(PAUSES_S) - 1)]
            failures += 1
            if failures == MAX_STARTS and not self.served_once:
                raise StageError("stage.gave_up", starts=failures)
            self.order = replace(self.order, restarts=self.order.restarts + 1)
            sys.stderr.write(f"omlx: the group has ended; starting it again in {pause:g} s\n")
            self._sleep(pause)
        return 0

    def _run_group(self) -> int:
        """Start all processes; return the status of the group when all have ended."""
        with ExitStack() as ending:
            report = ending.enter_context(tempfile.TemporaryFile())
            ending.callback(self._end_all)
            addresses = [host.address for host in self.hosts.hosts]
            links, *ring = [
                ending.enter_context(reserve_port(addresses[0])) for _ in range(1 + len(addresses))
            ]
            links.listen()
            ports = [reserved.getsockname()[1] for reserved in ring]
            order = replace(
                self.order,
                secret=secrets.token_hex(32),
                control=links.getsockname(),
                ring=tuple(map("{}:{}".format, addresses, ports)),
                listening=self.listening.fileno(),
                links=links.fileno(),
                report=report.fileno(),
            )
            for rank in range(len(addresses)):
                self._processes.append(self._start(replace(order, rank=rank)))
            links.close()  # the leader has it
            rank, status = self._first_ended()
            news = os.pread(report.fileno(), 2, 0)
            self.served_once = self.served_once or SERVING in news
            return self._ended(rank, status, joined=JOINED in news)

    def _start(self, order: Order) -> subprocess.Popen[bytes]:
        if order.rank:
            command = self.hosts.follower(order.rank, self.model, search=self.search)
            return start(command, order, self.hosts.environment)
        command = [sys.executable, "-m", "omlx", "serve", *self.command, "--lead"]
        descriptors = (order.listening, order.links, order.report)
        return start(command, order, self.hosts.environment, pass_fds=descriptors)

    def _first_ended(self) -> tuple[int, int]:
        """Return rank and status of the first process to end; after a signal, of the leader."""
        while True:
            for rank, process in enumerate(self._processes):
                status = process.poll()
                if status is not None and (rank == 0 or not self._stopping):
                    return rank, status
            time.sleep(_POLL_S)  # processes and signals have no common event

    def _ended(self, rank: int, status: int, *, joined: bool) -> int:
        """Judge the end of a process; return the status of the group."""
        if self._stopping or (rank == 0 and status >= 0):  # the leader says itself what was wrong
            return status
        host = self.order.hosts[rank]
        if rank and status in _NOT_STARTED and not joined:
            raise StageError("stage.not_started", host=host, detail=f"status {status}")
        refused = rank > 0 and status == REFUSED
        if not refused:
            sys.stderr.write(f"omlx: rank {rank} on {host} has ended with status {status}\n")
        if refused or (rank and joined and status != SILENT):  # the leader tells why
            with suppress(subprocess.TimeoutExpired):
                return self._processes[0].wait(GRACE_S)
        return status

    def _end_all(self) -> None:
        """End every local process; remote ones end when they lose their leader."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            assert process.stdin is not None
            with suppress(OSError):
                process.stdin.close()
        self._processes = []

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """Have the leader drain after a signal, and end at once after a second."""
        if self._processes:
            number = signal.SIGINT if self._stopping else signal.SIGTERM
            self._processes[0].send_signal(number)
        self._stopping = True

    def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self._stopping:
            time.sleep(_POLL_S)  # processes and signals have no common event
