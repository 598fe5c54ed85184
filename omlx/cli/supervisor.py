"""`omlx serve MODEL --hosts …`: starts a leader and its followers, and starts them again.

The supervisor keeps the listening socket, so that no client is refused meanwhile. A broken group
cannot be mended in its processes: when one of them ends, all end, and after a pause that grows all
start again. Imports no mlx.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from types import FrameType
from typing import Final

from omlx.cli.hostfile import Hosts
from omlx.cli.stage_order import JOIN_S, JOINED, REFUSED, SERVING, SILENT, Order
from omlx.errors import ConfigError, OmlxError, StageError

PAUSES_S: Final = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Seconds before each further start; the last one repeats. A group that served starts over."""

SERVED_S: Final = 60.0
"""Seconds after which a group has served: its next failure is a first one."""

_GRACE_S: Final = 2.0
_POLL_S: Final = 0.1
_FINAL: Final = (REFUSED, 141)
"""The exit statuses for what the user must mend, and without a reader of standard output."""

_NOT_STARTED: Final = (126, 127, 255)
"""The exit statuses of ssh and of a shell for a host or a command that is not there."""


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """`command` are the arguments of `omlx serve` without those of the group."""

    hosts: Hosts
    command: tuple[str, ...]
    model: str
    split: str = "pipeline"
    layers: tuple[int, ...] = ()
    timeout_s: float = 10.0


class Supervisor:
    """Runs one group at a time until a signal."""

    def __init__(self, options: GroupOptions, listening: socket.socket) -> None:
        self._options = options
        self._listening = listening
        self._processes: list[subprocess.Popen[bytes]] = []
        self._stopping = False  # set by a signal
        self._joined = False  # this group has come together
        self._served_once = False
        self._restarts = 0

    def run(self) -> int:
        """Return the exit status: 0 after a signal, 2 for what the user must mend."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)
        failures = 0
        status = 0
        while not self._stopping:
            started = time.monotonic()
            try:
                status = self._run_group()
            except OmlxError as error:  # a host that is off, a cable that is out
                if not self._served_once:
                    raise
                sys.stderr.write(f"omlx: {error.message}\n")
            if self._stopping or (status in _FINAL and not self._served_once):
                break
            if time.monotonic() - started > SERVED_S:
                failures = 0
            pause = PAUSES_S[min(failures, len(PAUSES_S) - 1)]
            failures += 1
            sys.stderr.write(f"omlx: the group has ended; starting it again in {pause:g} s\n")
            self._sleep(pause)
            self._restarts += 1
            status = 0
        return status

    def _run_group(self) -> int:
        """Start all processes; return the status with which the group ended. None is left."""
        self._joined = False
        reading, writing = os.pipe()
        try:
            orders = self._orders(writing)
            for order in orders:
                self._processes.append(self._start(order))
            os.close(writing)
            writing = -1
            return self._watch(reading)
        finally:
            self._end_all()
            os.close(reading)
            if writing >= 0:
                os.close(writing)

    def _watch(self, reading: int) -> int:
        """Wait until one process has ended, or the group does not come together in time."""
        until = time.monotonic() + JOIN_S + _GRACE_S
        while True:
            if select.select([reading], [], [], 0)[0]:
                news = os.read(reading, 64)
                self._joined = self._joined or JOINED in news
                self._served_once = self._served_once or SERVING in news
            for rank, process in enumerate(self._processes):
                status = process.poll()
                if status is not None and (rank == 0 or not self._stopping):
                    return self._ended(rank, status)
            if not self._joined and time.monotonic() > until:
                sys.stderr.write("omlx: the group did not come together\n")
                return 1
            time.sleep(_POLL_S)  # processes and signals have no common event

    def _ended(self, rank: int, status: int) -> int:
        """Judge the end of one process; return the status of the group."""
        if self._stopping or (rank == 0 and status >= 0):  # the leader says itself what was wrong
            return status
        host = self._options.hosts.hosts[rank].ssh
        if rank and status in _NOT_STARTED and not self._joined:
            raise StageError("stage.not_started", host=host, detail=f"status {status}")
        sys.stderr.write(f"omlx: rank {rank} on {host} has ended with status {status}\n")
        if self._joined and rank and status != SILENT:
            return self._wait(self._processes[0], _GRACE_S)  # it tells open requests why they end
        return status

    def _orders(self, report: int) -> list[Order]:
        """Fresh addresses and a fresh secret for each start."""
        hosts = self._options.hosts
        size = len(hosts.hosts)
        ports = _free_ports(hosts.hosts[0].address, size + 1)
        first = Order(
            secret=secrets.token_hex(32),
            rank=0,
            control=(hosts.hosts[0].address, ports[0]),
            hosts=tuple(host.ssh for host in hosts.hosts),
            backend=hosts.backend,
            ring=tuple(
                (f"{host.address}:{port}",)
                for host, port in zip(hosts.hosts, ports[1:], strict=True)
            ),
            rdma=tuple(host.rdma for host in hosts.hosts),
            split=self._options.split,
            layers=self._options.layers,
            timeout_s=self._options.timeout_s,
            restarts=self._restarts,
        )
        followers = [replace(first, rank=rank) for rank in range(1, size)]
        leader = replace(first, listening=self._listening.fileno(), report=report)
        return [leader, *followers]

    def _start(self, order: Order) -> subprocess.Popen[bytes]:
        """Start one process and hand it its order on standard input. Raises StageError."""
        descriptors: tuple[int, ...] = ()
        if order.rank == 0:
            command = [sys.executable, "-m", "omlx", "serve", *self._options.command, "--lead"]
            descriptors = (order.listening, order.report)
        else:
            command = self._options.hosts.follower(order.rank, self._options.model)
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                pass_fds=descriptors,
                env=self._options.hosts.environment,
                start_new_session=True,  # Ctrl-C in the terminal reaches the supervisor only
            )
        except OSError as error:
            host = order.hosts[order.rank]
            raise StageError("stage.not_started", host=host, detail=str(error)) from None
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended already; `_watch` finds out
            process.stdin.write(order.to_line())
            process.stdin.flush()
        return process

    def _end_all(self) -> None:
        """End every process. On another machine it ends when it has lost its leader."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            if process.stdin is not None:
                with suppress(OSError):
                    process.stdin.close()
        self._processes = []

    def _wait(self, process: subprocess.Popen[bytes], seconds: float) -> int:
        """Wait for a process; return its status, 1 if it still runs."""
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return 1

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: have the leader drain; a second signal ends it at once."""
        if not self._processes:
            self._stopping = True
            return
        leader = self._processes[0]
        leader.send_signal(signal.SIGINT if self._stopping else signal.SIGTERM)
        self._stopping = True

    def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self._stopping:
            time.sleep(_POLL_S)  # processes and signals have no common event


def _free_ports(address: str, count: int) -> list[int]:
    """Return ports that are free at this machine's address now."""
    sockets: list[socket.socket] = []
    try:
        for _ in range(count):
            sockets.append(socket.create_server((address, 0)))
        return [listener.getsockname()[1] for listener in sockets]
    except OSError as error:
        raise ConfigError("stage.address", address=address, detail=str(error)) from None
    finally:
        for listener in sockets:
            listener.close()
