"""How the processes of a group find each other: sockets, secret, versions, then mlx's ring."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import version
from typing import Final

from omlx import __version__
from omlx.cli.stage_order import JOIN_S, Order
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
    """Wait for every follower, join the group, and watch it. Raises StageError."""
    links: dict[int, Link] = {}
    with socket.create_server(order.control) as listener:
        until = time.monotonic() + JOIN_S
        while missing := sorted(set(range(1, len(order.hosts))) - set(links)):
            listener.settimeout(max(0.0, until - time.monotonic()) or 0.001)
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                hosts = ", ".join(order.hosts[rank] for rank in missing)
                raise StageError("stage.unreachable", hosts=hosts, seconds=int(JOIN_S)) from None
            link = Link(connection)
            rank = _welcomed(link, order, set(missing))
            if rank is not None:
                links[rank] = link
    for link in links.values():
        link.send_json(Kind.JOIN, order.ring_order)
    group = join(0, order.ring_order)
    names = {rank: order.hosts[rank] for rank in links}
    leader, restarts = order.hosts[0], order.restarts
    stages = Stages(links, names, order.timeout_s, on_lost, leader=leader, restarts=restarts)
    for rank, link in links.items():
        stages.statuses[rank].free_bytes = link.expect(Kind.JOINED).json()["free_bytes"]
    stages.start()
    return stages, group


def _welcomed(link: Link, order: Order, missing: set[int]) -> int | None:
    """Return the rank of a follower; None for a stranger.

    Raises StageError for a follower that cannot take part: another version, say.
    """
    link.settimeout(_GREETING_S)
    try:
        rank = welcome(link, bytes.fromhex(order.secret), facts(), missing)
    except (OSError, StageError) as error:
        link.close()
        if isinstance(error, StageError) and error.code == "stage.mismatch":
            raise
        sys.stderr.write(f"omlx: a connection was refused: {error}\n")
        return None
    link.settimeout(None)
    return rank


def follow(order: Order) -> tuple[Link, Group]:
    """Connect to the leader and join the group. Raises StageError."""
    link = Link(connect(order))
    link.settimeout(JOIN_S)
    introduce(link, bytes.fromhex(order.secret), facts(), order.rank)
    ring = link.expect(Kind.JOIN).json()
    group = join(order.rank, ring)
    link.send_json(Kind.JOINED, {"free_bytes": free_bytes()})
    link.settimeout(max(order.timeout_s, 1.0))
    return link, group


def connect(order: Order) -> socket.socket:
    """Connect to the leader, which may still be starting."""
    until = time.monotonic() + JOIN_S
    while time.monotonic() < until:
        with suppress(OSError):
            return socket.create_connection(order.control, timeout=_GREETING_S)
        time.sleep(_RETRY_S)  # a port that is not open yet gives no event
    host, port = order.control
    raise StageError("stage.no_leader", address=f"{host}:{port}")
