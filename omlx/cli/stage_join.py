"""How the processes of a group find each other: sockets, secret, versions, then mlx's ring."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Final

from omlx import __version__
from omlx.cli.stage_start import JOIN_S, REFUSED
from omlx.engine.stage.group import Group, join
from omlx.engine.stage.link import Kind, Link, introduce, welcome
from omlx.engine.stage.order import Order
from omlx.engine.stage.stages import Stages
from omlx.errors import StageError, StageLost
from omlx.models.pool.footprint import device

PROTOCOL: Final = 3

_GREETING_S: Final = 5.0
_POLL_S: Final = 0.1


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


def lead(
    order: Order, on_lost: Callable[[StageLost], None], free_bytes: Callable[[], int]
) -> tuple[Stages, Group]:
    """Wait for every follower, join the group, and watch it.

    Raises StageError for what the user must mend, StageLost for a process that has gone, or an
    address of the ring that was taken meanwhile.
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
    """Wait for the followers `expected`, hosts by rank, that have the facts `own` too; return their
    links. Strangers are turned away.

    Raises StageError for a follower that cannot take part, such as another version, for one that
    does not come, and whatever `check` raises, which is called meanwhile.
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
            if isinstance(error, StageError) and error.code == "stage.mismatch":
                raise
            sys.stderr.write(f"omlx: a connection was refused: {error}\n")
        else:
            link.settimeout(JOIN_S)
    return links


def introduced(order: Order) -> Link:
    """Connect to the leader and be welcomed; return the link. The port is open before this process
    starts; the leader may answer later. Raises StageError; exits if the leader refuses this one.
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
