"""How the processes of a group find each other: sockets, secret, versions, then mlx's ring."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import version
from typing import Final

from omlx import __version__
from omlx.cli.stage_order import JOIN_S, REFUSED, Order
from omlx.engine.stage.group import Group, join
from omlx.engine.stage.link import Kind, Link, introduce, welcome
from omlx.engine.stage.stages import Stages
from omlx.errors import StageError, StageLost
from omlx.models.pool.footprint import device, free_bytes

PROTOCOL: Final = 1

_GREETING_S: Final = 5.0
_RETRY_S: Final = 0.1


def facts(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What must be equal on all ranks."""
    return {
        "protocol": str(PROTOCOL),
        "omlx": __version__,
        "mlx": version("mlx"),
        "mlx-lm": version("mlx-lm"),
        "device": device(),
        "MLX_METAL_FAST_SYNCH": environment.get("MLX_METAL_FAST_SYNCH", "unset"),
    }


def lead(order: Order, on_lost: Callable[[StageLost], None]) -> tuple[Stages, Group]:
    """Wait for every follower, join the group, and watch it.

    Raises StageError for what the user must mend, StageLost for anything else.
    """
    with _joining():
        links = _links(order)
        for link in links.values():
            link.send_json(Kind.JOIN, order.ring_order)
        group = join(0, order.ring_order)
        free = {rank: link.expect(Kind.JOINED).json() for rank, link in links.items()}
    names = {rank: order.hosts[rank] for rank in links}
    leader, restarts = order.hosts[0], order.restarts
    stages = Stages(links, names, order.timeout_s, on_lost, leader=leader, restarts=restarts)
    for rank, values in free.items():
        stages.statuses[rank].free_bytes = values["free_bytes"]
    stages.start()
    return stages, group


def _links(order: Order) -> dict[int, Link]:
    """Wait for every follower; return their links by rank."""
    links: dict[int, Link] = {}
    missing = {rank: host for rank, host in enumerate(order.hosts) if rank}
    with socket.create_server(order.control) as listener:
        until = time.monotonic() + JOIN_S
        while missing:
            listener.settimeout(max(0.001, until - time.monotonic()))
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                hosts = ", ".join(missing.values())
                raise StageError("stage.unreachable", hosts=hosts, seconds=int(JOIN_S)) from None
            welcomed = welcome_follower(connection, order, missing, facts())
            if welcomed is not None:
                rank, links[rank] = welcomed
                del missing[rank]
    return links


def welcome_follower(
    connection: socket.socket, order: Order, missing: Mapping[int, str], own: Mapping[str, str]
) -> tuple[int, Link] | None:
    """Return rank and link of a follower that has the facts `own`, too; None for a stranger.

    Raises StageError for a follower that cannot take part: another version, say.
    """
    link = Link(connection)
    link.settimeout(_GREETING_S)
    try:
        rank = welcome(link, bytes.fromhex(order.secret), own, missing)
    except (OSError, StageError) as error:
        link.close()
        if isinstance(error, StageError) and error.code == "stage.mismatch":
            raise
        sys.stderr.write(f"omlx: a connection was refused: {error}\n")
        return None
    link.settimeout(None)
    return rank, link


def introduced(order: Order) -> Link:
    """Connect to the leader, which may still be starting; return the link. Raises StageError."""
    link = Link(connect(order))
    link.settimeout(JOIN_S)
    introduce(link, bytes.fromhex(order.secret), facts(), order.rank)
    return link


def follow(order: Order) -> tuple[Link, Group]:
    """Connect to the leader and join the group. Raises as `lead`."""
    with _joining():
        try:
            link = introduced(order)
        except StageError as error:
            if error.code == "stage.protocol":
                raise
            sys.exit(REFUSED)  # the leader says why
        group = join(order.rank, link.expect(Kind.JOIN).json())
        link.send_json(Kind.JOINED, {"free_bytes": free_bytes()})
        link.settimeout(order.timeout_s)
    return link, group


@contextmanager
def _joining() -> Iterator[None]:
    """Raise StageLost for a process that has gone, or an address that was taken meanwhile."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        raise StageLost("stage.not_joined", detail=str(error)) from None


def connect(order: Order) -> socket.socket:
    """Connect to the leader, which may still be starting."""
    until = time.monotonic() + JOIN_S
    while time.monotonic() < until:
        with suppress(OSError):
            return socket.create_connection(order.control, timeout=_GREETING_S)
        time.sleep(_RETRY_S)  # a port that is not open yet gives no event
    host, port = order.control
    raise StageError("stage.no_leader", address=f"{host}:{port}")
