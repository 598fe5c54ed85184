"""The order of one process of a group, which the supervisor hands it on standard input.

One line of JSON. The secret in it appears in no list of processes. Imports no mlx.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from dataclasses import asdict, dataclass
from typing import Any, Final

JOINED: Final = b"j"
SERVING: Final = b"s"

REFUSED: Final = 2
"""Exit status for what the user must mend."""

LOST: Final = 75
"""Exit status after a stage was lost: the supervisor starts the group again."""

SILENT: Final = 76
"""Exit status of a follower that has not heard of the leader in time: it cannot end by itself."""

_GRACE_S: Final = 2.0

JOIN_S: Final = 60.0
"""Seconds within which all processes of a group must have come together."""


@dataclass(frozen=True, slots=True)
class Order:
    """What a process of a group must know.

    `control` is the leader's address for links; `ring` has the addresses of every rank, `rdma` its
    devices; `hosts` are names by rank. `listening` is the file descriptor of the server's socket,
    `report` that of a pipe to the supervisor; both are the leader's.
    """

    secret: str
    rank: int
    control: tuple[str, int]
    hosts: tuple[str, ...]
    backend: str = "ring"
    ring: tuple[tuple[str, ...], ...] = ()
    rdma: tuple[Any, ...] = ()
    split: str = "pipeline"
    layers: tuple[int, ...] = ()
    timeout_s: float = 10.0
    restarts: int = 0
    listening: int = -1
    report: int = -1

    def to_line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @staticmethod
    def read() -> Order:
        """Read the order of this process from standard input."""
        values = json.loads(sys.stdin.readline())
        tuples = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return Order(**{**values, **tuples})

    def server_socket(self) -> socket.socket:
        """The listening socket of the server, which the supervisor keeps open."""
        return socket.socket(fileno=self.listening)

    def tell_supervisor(self, news: bytes) -> None:
        """Tell the supervisor how far this leader has come: JOINED, SERVING."""
        os.write(self.report, news)

    @property
    def ring_order(self) -> dict[str, Any]:
        """What `join` and the frame of that name need."""
        return {
            "backend": self.backend,
            "ring": [list(addresses) for addresses in self.ring],
            "rdma": list(self.rdma),
            "coordinator": self.ring[0][0],
            "tensor": self.split == "tensor",
            "timeout_s": self.timeout_s,
        }


def end_without_supervisor() -> None:
    """End this process when the supervisor has gone: its end of standard input closes. Open
    requests have `_GRACE_S` to finish.
    """

    def watch() -> None:
        sys.stdin.read()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_GRACE_S)  # a second signal ends the drain
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=watch, name="omlx-supervisor", daemon=True).start()
