"""`omlx doctor --hosts`: what every host can do, and how fast its link is.

    doctor ── starts, by ssh or here ───►  omlx stage [MODEL] --probe
           ◄─ secret, versions ─────────►
           ◄─ fingerprint, free bytes ───
           ── beats, portions of bytes ─►  answers beats: round trip, throughput

Nothing is loaded. Followers connect to the first host, as they do for `omlx serve --hosts`.
"""

from __future__ import annotations

import secrets
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from omlx.cli.arguments import find_models, model_id
from omlx.cli.hostfile import Hosts
from omlx.cli.output import size
from omlx.cli.stage_join import facts, introduced, welcome_follower
from omlx.cli.stage_order import JOIN_S, Order
from omlx.engine.stage.link import Kind, Link
from omlx.errors import ConfigError, ModelError, NotFound, OmlxError, StageError
from omlx.models.catalog.catalog import Catalog
from omlx.models.catalog.entry import ModelEntry
from omlx.models.catalog.fingerprint import check_same, fingerprint
from omlx.models.pool.footprint import free_bytes
from omlx.settings.configuration import LiveConfiguration

HEAD: Final = ("host", "address", "model", "rtt", "rate", "free")
"""The columns of the report; keys of the catalog."""

ROUND_TRIPS: Final = 100
PORTION: Final = bytes(1 << 20)
SENDING_S: Final = 0.5
"""Seconds for which portions are sent."""

_POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class HostReport:
    """`problem` is None for a host that can take part; figures are None if it did not answer.

    `same_model` is None if no model was named.
    """

    host: str
    address: str
    same_model: bool | None = None
    rtt_us: float | None = None
    mb_per_s: float | None = None
    free_bytes: int | None = None
    problem: OmlxError | None = None

    @property
    def cells(self) -> tuple[str, ...]:
        """One row below `HEAD`."""
        same = {None: "-", True: "=", False: "≠"}[self.same_model]
        return (
            self.host,
            self.address,
            same,
            "-" if self.rtt_us is None else f"{self.rtt_us:.0f} µs",
            "-" if self.mb_per_s is None else f"{self.mb_per_s:.0f} MB/s",
            "-" if self.free_bytes is None else size(self.free_bytes),
        )


def probe_hosts(
    hosts: Hosts, model: str | None, configuration: LiveConfiguration
) -> Iterator[HostReport]:
    """Probe every host but the first, which is this one, in turn.

    Raises NotFound or ModelError if this machine has no such model, ConfigError for an address
    that is not this machine's.
    """
    own = {} if model is None else fingerprint(find_model(model, configuration).path)
    first = hosts.hosts[0].address
    try:
        listener = socket.create_server((first, 0))
    except OSError as error:
        raise ConfigError("stage.address", address=first, detail=str(error)) from None
    with listener:
        for rank in range(1, len(hosts.hosts)):
            yield _probe(hosts, rank, model, own, listener)


def answer_probe(order: Order, model: str | None, configuration: LiveConfiguration) -> int:
    """Be the other side: tell what is here, then answer beats. Raises StageError."""
    link = introduced(order)
    told: dict[str, Any] = {"free_bytes": free_bytes()}
    if model is not None:
        try:
            told["fingerprint"] = fingerprint(find_model(model, configuration).path)
        except (ModelError, NotFound) as error:
            told["refused"] = error.message
    link.send_json(Kind.PROBED, told)
    while (frame := link.receive()) is not None:
        if frame.kind is Kind.BEAT:
            link.send(Kind.BEAT)
    return 0


def find_model(name: str, configuration: LiveConfiguration) -> ModelEntry:
    """Return the model of this machine that a command line names. Raises NotFound, ModelError."""
    registry = find_models([name], configuration.current).scan()
    return Catalog(registry, configuration).resolve(model_id(name))


def _probe(
    hosts: Hosts, rank: int, model: str | None, own: dict[str, str], listener: socket.socket
) -> HostReport:
    host = hosts.hosts[rank]
    names = tuple(each.ssh for each in hosts.hosts)
    order = Order(secrets.token_hex(32), rank, listener.getsockname()[:2], names)
    arguments = ["--probe"] if model is None else [model, "--probe"]
    with subprocess.Popen(
        hosts.follower(rank, *arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=hosts.environment,
    ) as process:
        try:
            assert process.stdin is not None
            process.stdin.write(order.to_line())
            process.stdin.flush()
            with closing(_accepted(order, process, listener, hosts)) as link:
                told = link.expect(Kind.PROBED).json()
                rtt_us, mb_per_s = _measured(link)
        except (OSError, StageError) as error:
            process.kill()
            failure = error if isinstance(error, StageError) else _failed(host.ssh, str(error))
            return HostReport(host.ssh, host.address, problem=failure)
    problem = None if model is None else _difference(host.ssh, model, own, told)
    same = None if model is None else problem is None
    figures = rtt_us, mb_per_s, told["free_bytes"]
    return HostReport(host.ssh, host.address, same, *figures, problem)


def _accepted(
    order: Order, process: subprocess.Popen[bytes], listener: socket.socket, hosts: Hosts
) -> Link:
    """Wait for the follower; connections of others are closed. Raises StageError."""
    host, address = order.hosts[order.rank], f"{order.control[0]}:{order.control[1]}"
    expected, until = facts(hosts.environment), time.monotonic() + JOIN_S
    listener.settimeout(_POLL_S)
    while time.monotonic() < until:
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            if process.poll() is not None:
                assert process.stderr is not None
                lines = process.stderr.read().decode(errors="replace").strip().splitlines()
                raise _failed(host, lines[-1] if lines else str(process.returncode)) from None
            continue
        welcomed = welcome_follower(connection, order, {order.rank: host}, expected)
        if welcomed is not None:
            _, link = welcomed
            link.settimeout(JOIN_S)
            return link
    raise StageError("stage.no_connection", host=host, address=address, seconds=int(JOIN_S))


def _measured(link: Link) -> tuple[float, float]:
    """Return the median round trip in microseconds, and the throughput in MB/s."""
    trips = []
    for _ in range(ROUND_TRIPS):
        start = time.perf_counter()
        link.send(Kind.BEAT)
        link.expect(Kind.BEAT)
        trips.append(time.perf_counter() - start)
    start, sent = time.perf_counter(), 0
    while time.perf_counter() - start < SENDING_S:
        link.send(Kind.PLAN, PORTION)
        sent += len(PORTION)
    link.send(Kind.BEAT)  # its answer: everything before has arrived
    link.expect(Kind.BEAT)
    return 1e6 * median(trips), sent / 1e6 / (time.perf_counter() - start)


def _difference(
    host: str, model: str, own: dict[str, str], told: dict[str, Any]
) -> StageError | None:
    """Return why the model of a host is not the one of this machine."""
    if "refused" in told:
        return StageError("stage.model_missing", host=host, model=model, detail=told["refused"])
    try:
        check_same(model, own, told["fingerprint"])
    except StageError as error:
        values: dict[str, Any] = {**error.params, "host": host}
        return StageError(error.code, **values)
    return None


def _failed(host: str, detail: str) -> StageError:
    return StageError("stage.not_started", host=host, detail=detail)
