"""`omlx doctor --hosts`: what every host can do, and how fast its link is.

    doctor ── starts, by ssh or here ───►  omlx stage [MODEL]
           ◄─ secret, versions ─────────►
           ── fingerprint ──────────────►  the same model, or why not; free bytes
           ── beats, portions of bytes ─►  answers beats: round trip, throughput

The followers are those of `omlx serve --hosts`, up to the point where they would join the group.
Nothing is loaded.
"""

from __future__ import annotations

import secrets
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any, Final, TypeAlias

from omlx.cli.arguments import find_model
from omlx.cli.hostfile import Hosts
from omlx.cli.output import size
from omlx.cli.stage_join import facts, welcomed
from omlx.cli.stage_start import reserve_port, start
from omlx.engine.stage.link import Kind, Link
from omlx.engine.stage.order import Order
from omlx.errors import OmlxError, StageError
from omlx.models.catalog.files import fingerprint
from omlx.settings.configuration import LiveConfiguration

HEAD: Final = ("host", "address", "model", "rtt", "rate", "free")
"""The columns of the report; keys of the catalog."""

ROUND_TRIPS: Final = 100
PORTION: Final = bytes(1 << 20)
SENDING_S: Final = 0.5
"""Seconds for which portions are sent."""


Report: TypeAlias = tuple[list[str], OmlxError | None]
"""One row below `HEAD`; why the host cannot take part, None if it can."""


def probe_hosts(
    hosts: Hosts, model: str | None, configuration: LiveConfiguration, search: Sequence[str] = ()
) -> Iterator[Report]:
    """Probe every host but the first, which is this one, in turn; those here search by `search`.

    Raises NotFound or ModelError if this machine has no such model, ConfigError for an address
    that is not this machine's.
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
    """Return the median round trip, the throughput, and the free memory."""
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
    link.send_json(Kind.BEAT, {})  # its answer: everything before has arrived
    link.expect(Kind.BEAT)
    rate = sent / 1e6 / (time.perf_counter() - began)
    return [f"{1e6 * median(trips):.0f} µs", f"{rate:.0f} MB/s", size(answer["free_bytes"])]
