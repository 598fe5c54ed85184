"""Links of a group: sockets, secret, versions, then mlx's ring; and `omlx doctor --hosts`.

The doctor stops before the ring: abilities of every host, and the speed of its link.

    doctor ── starts, by ssh or here ───►  omlx stage [MODEL]
           ◄─ secret, versions ─────────►
           ── fingerprint ──────────────►  the same model, or why not; free bytes
           ── beats, portions of bytes ─►  answers beats: round trip, throughput
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from statistics import median
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from omlx import __version__
from omlx.cli.arguments import Selection, find_model
from omlx.cli.output import memory_size
from omlx.cli.serve.ending import LAST_WORDS_S
from omlx.cli.stage.processes import (
    JOIN_S,
    JOINED,
    LOST,
    REFUSED,
    Hosts,
    end_without_supervisor,
    reserve_port,
    start,
)
from omlx.engine.stage.link import Kind, Link, Order, introduce, welcome
from omlx.engine.stage.runners import Group, join
from omlx.engine.stage.stages import Stages
from omlx.engine.thread import EngineThread
from omlx.errors import OmlxError, StageError, StageLost
from omlx.models.catalog.facts import fingerprint
from omlx.models.pool.footprint import device, free_bytes, limit_bytes
from omlx.settings.configuration import LiveConfiguration

if TYPE_CHECKING:
    from omlx.models.stages import StagedReader

PROTOCOL: Final = 3

_GREETING_S: Final = 5.0
_POLL_S: Final = 0.1


def facts(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the facts that must be equal on all ranks."""
    return {
        "protocol": str(PROTOCOL),
        "omlx": __version__,
        "mlx": version("mlx"),
        "mlx-lm": version("mlx-lm"),
        "device": device(),
        "MLX_METAL_FAST_SYNCH": environment.get("MLX_METAL_FAST_SYNCH", "unset"),
    }


def staged_reader(order: Order, engine: EngineThread, selection: Selection) -> StagedReader:
    """Bring the group together; return a reader that distributes the selected model.

    Raises StageError.
    """
    from omlx.models.stages import StagedReader  # noqa: PLC0415 — imports mlx-lm, which is slow

    def lost(failure: StageLost) -> None:
        """Fail open requests, wait for their errors to be sent, and exit for a restart."""
        logging.getLogger("omlx.stage").critical(failure.message)
        try:
            engine.abandon(failure)
            time.sleep(LAST_WORDS_S)  # the event loop sends the errors meanwhile
        finally:
            os._exit(LOST)

    def room() -> int:
        limit = selection.catalog.live.current.resolve().settings.memory_limit
        return free_bytes(limit_bytes(limit))

    assert selection.model is not None  # the supervisor requires one
    stages, group = lead(order, lost, room)
    os.write(order.report, JOINED)
    end_without_supervisor()
    return StagedReader(selection.model, stages, group)


def lead(
    order: Order, on_lost: Callable[[StageLost], None], free_bytes: Callable[[], int]
) -> tuple[Stages, Group]:
    """Wait for every follower, join the group, and start watching.

    Raises StageError for failures that the user must fix; StageLost for a process that has gone, or
    a ring address taken meanwhile.
    """
    try:
        with socket.socket(fileno=order.links) as listener:
            followers = {rank: host for rank, host in enumerate(order.hosts) if rank}
            links = welcomed(listener, order, followers, facts())
        for link in links.values():
            link.send(Kind.JOIN)
        group = join(order)
    except (OSError, RuntimeError) as error:
        raise StageLost("stage.not_joined", detail=str(error)) from None
    stages = Stages(links, order, on_lost, free_bytes)
    stages.start()
    return stages, group


def welcomed(
    listener: socket.socket,
    order: Order,
    expected: Mapping[int, str],
    own: Mapping[str, str],
    check: Callable[[], None] = lambda: None,
) -> dict[int, Link]:
    """Wait for the followers `expected` (hosts by rank) with equal facts `own`; return their links.

    Strangers are turned away. `check` is called while waiting, and its errors propagate. Raises
    StageError for a follower that cannot take part, such as another version, or that does not
    connect within `JOIN_S`.
    """
    links: dict[int, Link] = {}
    until = time.monotonic() + JOIN_S
    listener.settimeout(_POLL_S)
    while missing := {rank: host for rank, host in expected.items() if rank not in links}:
        if time.monotonic() > until:
            hosts, address = ", ".join(missing.values()), "{}:{}".format(*order.control)
            raise StageError("stage.unreachable", hosts=hosts, address=address, seconds=int(JOIN_S))
        check()
        try:
            link = Link(listener.accept()[0])
        except TimeoutError:
            continue
        link.settimeout(_GREETING_S)
        try:
            links[welcome(link, bytes.fromhex(order.secret), own, missing)] = link
        except (OSError, StageError) as error:
            link.close()
            # A mismatch is final. A stranger is refused, and the wait continues.
            if isinstance(error, StageError) and error.code == "stage.mismatch":
                raise
            sys.stderr.write(f"omlx: a connection was refused: {error}\n")
        else:
            link.settimeout(JOIN_S)
    return links


def introduced(order: Order) -> Link:
    """Connect to the leader, authenticate, and return the link.

    The port is open before this process starts; the leader may answer later. Raises StageError;
    exits if the leader refuses this process.
    """
    try:
        connection = socket.create_connection(order.control, JOIN_S)
    except OSError:
        address = "{}:{}".format(*order.control)
        raise StageError("stage.no_leader", address=address) from None
    link = Link(connection)
    try:
        introduce(link, bytes.fromhex(order.secret), facts(), order.rank)
    except StageError as error:
        if error.code == "stage.protocol":
            raise
        sys.exit(REFUSED)  # the leader says why
    except OSError as error:
        raise StageLost("stage.not_joined", detail=str(error)) from None
    return link


HEAD: Final = ("host", "address", "model", "rtt", "rate", "free")
"""Columns of the report — keys of the catalog."""

ROUND_TRIPS: Final = 100
PORTION: Final = bytes(1 << 20)
SENDING_S: Final = 0.5
"""Seconds — duration of sending portions."""


Report: TypeAlias = tuple[list[str], OmlxError | None]
"""A row below `HEAD`, and why the host cannot take part; None if able."""


def probe_hosts(
    hosts: Hosts, model: str | None, configuration: LiveConfiguration, search: Sequence[str] = ()
) -> Iterator[Report]:
    """Probe every host but the first (this machine) in turn.

    Local processes search models by `search`. Raises NotFound or ModelError if the model is not on
    this machine, ConfigError for an address that is not this machine's.
    """
    asked: dict[str, Any] = {}
    if model is not None:
        entry = find_model(model, configuration)
        asked = {"model": entry.id, "fingerprint": fingerprint(entry.path)}
    with reserve_port(hosts.hosts[0].address) as listener:
        listener.listen()
        names, control = tuple(host.ssh for host in hosts.hosts), listener.getsockname()
        for rank in range(1, len(names)):
            order = Order(names, secrets.token_hex(32), rank, control)
            command = hosts.follower(rank, *filter(None, [model]), search=search)
            yield _probe(hosts, order, listener, command, asked)


def _probe(
    hosts: Hosts, order: Order, listener: socket.socket, command: list[str], asked: dict[str, Any]
) -> Report:
    cells, problem = [order.host, hosts.hosts[order.rank].address, *"----"], None
    try:
        with ExitStack() as ending:
            pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
            process = start(command, order, hosts.environment, **pipes)
            ending.enter_context(process)
            ending.callback(process.kill)

            def check() -> None:
                if process.poll() is not None:
                    raise _not_started(process, order.host)

            expected = {order.rank: order.host}
            link = welcomed(listener, order, expected, facts(hosts.environment), check)[order.rank]
            ending.callback(link.close)
            if asked:
                link.send_json(Kind.CHECK, asked)
                try:
                    link.expect(Kind.REPLY).answer()
                    cells[2] = "="
                except StageError as error:
                    problem, cells[2] = error, "≠"
            cells[3:] = _measured(link)
    except OSError as error:
        problem = StageError("stage.not_started", host=order.host, detail=str(error))
    except StageError as error:
        problem = error
    return cells, problem


def _not_started(process: subprocess.Popen[bytes], host: str) -> StageError:
    assert process.stderr is not None
    lines = process.stderr.read().decode(errors="replace").strip().splitlines()
    detail = lines[-1] if lines else f"status {process.returncode}"
    return StageError("stage.not_started", host=host, detail=detail)


def _measured(link: Link) -> list[str]:
    """Return the median round trip, the throughput, and the free memory, as cells."""
    trips = []
    for _ in range(ROUND_TRIPS):
        began = time.perf_counter()
        link.send_json(Kind.BEAT, {})
        answer = link.expect(Kind.BEAT).json()
        trips.append(time.perf_counter() - began)
    began, sent = time.perf_counter(), 0
    while time.perf_counter() - began < SENDING_S:
        link.send(Kind.PORTION, PORTION)
        sent += len(PORTION)
    link.send_json(Kind.BEAT, {})  # once answered, all portions have arrived
    link.expect(Kind.BEAT)
    rate = sent / 1e6 / (time.perf_counter() - began)
    return [f"{1e6 * median(trips):.0f} µs", f"{rate:.0f} MB/s", memory_size(answer["free_bytes"])]
