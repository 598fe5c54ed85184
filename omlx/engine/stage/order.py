"""The order of one process of a group, which the supervisor hands it on standard input. No mlx.

One line of JSON. The secret in it appears in no list of processes.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Order:
    """What a process of a group must know.

    `hosts` are names by rank, `ring` their addresses for mlx, `rdma` their devices. `control` is
    the leader's address for links. `layers` by rank override the split that follows from memory.
    `listening` is the file descriptor of the server's socket, `report` that of a file which the
    supervisor reads; both are the leader's.
    """

    hosts: tuple[str, ...]
    secret: str = ""
    rank: int = 0
    control: tuple[str, int] = ("", 0)
    backend: str = "ring"
    ring: tuple[str, ...] = ()
    rdma: tuple[Any, ...] = ()
    tensor: bool = False
    layers: tuple[int, ...] = ()
    timeout_s: float = 10.0
    restarts: int = 0
    listening: int = -1
    report: int = -1

    @property
    def host(self) -> str:
        return self.hosts[self.rank]

    def to_line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @staticmethod
    def from_line(line: str) -> Order:
        values = json.loads(line)
        tuples = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return Order(**{**values, **tuples})
