"""The order of one process of a group, which the supervisor hands it on standard input. No mlx.

One line of JSON. The secret in it appears in no list of processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from pydantic import TypeAdapter


@dataclass(frozen=True, slots=True)
class Order:
    """What a process of a group must know.

    `hosts` are names by rank, `ring` their addresses for mlx, `rdma` their devices. `control` is
    the address at which the leader accepts links. `layers` by rank override the split that follows
    from memory. The leader has file descriptors: `listening` of the server's socket, `links` of the
    one for links, `report` of a file which the supervisor reads.
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
    links: int = -1
    report: int = -1

    @property
    def host(self) -> str:
        return self.hosts[self.rank]

    def to_line(self) -> bytes:
        return _JSON.dump_json(self) + b"\n"

    @staticmethod
    def from_line(line: str) -> Order:
        return _JSON.validate_json(line)


_JSON: Final = TypeAdapter(Order)
