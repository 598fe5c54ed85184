"""Orders and links of a group's processes: lines of JSON, frames over TCP. No mlx.

    length of the payload (4 bytes) | kind (1) | lane (4) | payload

The supervisor hands each process its order on standard input: the secret in it appears in no list
of processes. A lane is one runner: that of the engine loop is 0, calibrations have others. Before
anything else both sides prove that they know the secret, by an HMAC of the other's nonce, and
compare versions.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
import struct
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from pydantic import TypeAdapter

from omlx.errors import Param, StageError


@dataclass(frozen=True, slots=True)
class Order:
    """Order to a process of a group: all that it must know.

    `hosts` are names by rank, `ring` their addresses for mlx, `rdma` their devices. `control` is
    the address at which the leader accepts links. `layers` by rank override the split that follows
    from memory. The leader has file descriptors: `listening` of the server's socket, `links` of the
    socket for links, `report` of a file which the supervisor reads.
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


MAX_PAYLOAD: Final = 64 << 20
"""Bytes. A plan that prefills 2,048 ids takes 15 KB."""

_HEAD: Final = struct.Struct("!IBI")
_NONCE_BYTES: Final = 32


class Kind(IntEnum):
    HELLO = 1
    WELCOME = 2
    CHECK = 3
    JOIN = 4
    LOAD = 5
    PROBE = 6
    REPLY = 7
    LANE = 8
    CLOSE = 9
    PLAN = 10
    BEAT = 11
    FAILED = 12
    PORTION = 13


@dataclass(frozen=True, slots=True)
class Frame:
    kind: Kind
    lane: int = 0
    payload: bytes = b""

    def json(self) -> dict[str, Any]:
        """The payload as an object. Raises StageError for anything else."""
        value = None
        with suppress(ValueError, RecursionError):
            value = json.loads(self.payload)
        if not isinstance(value, dict):
            raise StageError("stage.protocol", detail="a payload is no JSON object")
        return value

    def answer(self) -> dict[str, Any]:
        """The payload of an answer. Raises StageError if it is a refusal."""
        value = self.json()
        if "refused" in value:
            raise StageError(value["refused"], **value["params"])
        return value


class Link:
    """One end of a connection. Any thread may send; one thread at a time receives."""

    def __init__(self, connection: socket.socket) -> None:
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._stream = connection.makefile("rb")
        self._sending = threading.RLock()  # a signal may end this process while it sends

    def send(self, kind: Kind, payload: bytes = b"", lane: int = 0) -> None:
        """Raises OSError if the other side has gone."""
        with self._sending:
            self._socket.sendall(_HEAD.pack(len(payload), kind, lane) + payload)

    def send_json(self, kind: Kind, values: Mapping[str, Any], lane: int = 0) -> None:
        self.send(kind, json.dumps(dict(values)).encode(), lane)

    def refuse(self, kind: Kind, refusal: StageError, lane: int = 0, **more: Param) -> None:
        """Send why an answer of this kind is a refusal; `more` are parameters of the sentence."""
        params = {**refusal.params, **more}
        self.send_json(kind, {"refused": refusal.code, "params": params}, lane)

    def receive(self) -> Frame | None:
        """Wait for a frame; None: the other side has closed. Raises OSError, TimeoutError, and
        StageError for what is no frame.
        """
        head = self._stream.read(_HEAD.size)
        if len(head) < _HEAD.size:
            return None
        length, kind, lane = _HEAD.unpack(head)
        if length > MAX_PAYLOAD or not 0 < kind <= len(Kind):
            raise StageError("stage.protocol", detail="the other side does not speak this protocol")
        payload = self._stream.read(length)
        return Frame(Kind(kind), lane, payload) if len(payload) == length else None

    def expect(self, *kinds: Kind) -> Frame:
        """Wait for a frame of one of these kinds.

        Raises StageError for another kind, OSError for the end of the connection.
        """
        frame = self.receive()
        if frame is None:
            raise ConnectionError("the connection ended")
        if frame.kind not in kinds:
            detail = f"{frame.kind.name} came where {kinds[0].name} was due"
            raise StageError("stage.protocol", detail=detail)
        return frame

    def settimeout(self, seconds: float | None) -> None:
        self._socket.settimeout(seconds)

    def close(self) -> None:
        self._stream.close()
        self._socket.close()


def welcome(link: Link, secret: bytes, facts: Mapping[str, str], hosts: Mapping[int, str]) -> int:
    """Accept a follower; return its rank, which is one of `hosts`.

    Both sides must have the same `facts`, such as versions. Raises StageError, after telling the
    other side why; a stranger without the secret learns nothing else.
    """
    nonce = secrets.token_hex(_NONCE_BYTES)
    link.send_json(Kind.HELLO, {"nonce": nonce})
    hello = link.expect(Kind.HELLO).json()
    try:
        _check_proof(secret, nonce, hello)
        rank = int(hello["rank"])  # the peer knows the secret: no stranger
        if rank not in hosts:
            raise StageError("stage.rank", rank=rank, free=", ".join(map(str, sorted(hosts))))
        _check_facts(facts, hello["facts"], hosts[rank])
    except StageError as refusal:
        link.refuse(Kind.WELCOME, refusal)
        raise
    link.send_json(Kind.WELCOME, {"proof": _proof(secret, str(hello.get("nonce")))})
    return rank


def introduce(link: Link, secret: bytes, facts: Mapping[str, str], rank: int) -> None:
    """Introduce this follower to the leader. Raises StageError if either refuses the other."""
    theirs = link.expect(Kind.HELLO).json()
    nonce = secrets.token_hex(_NONCE_BYTES)
    proof = _proof(secret, str(theirs.get("nonce")))
    link.send_json(Kind.HELLO, {"rank": rank, "nonce": nonce, "proof": proof, "facts": dict(facts)})
    _check_proof(secret, nonce, link.expect(Kind.WELCOME).answer())


def _proof(secret: bytes, nonce: str) -> str:
    return hmac.new(secret, nonce.encode(), hashlib.sha256).hexdigest()


def _check_proof(secret: bytes, nonce: str, message: Mapping[str, Any]) -> None:
    given = str(message.get("proof")).encode(errors="replace")
    if not hmac.compare_digest(_proof(secret, nonce).encode(), given):
        raise StageError("stage.secret")


def _check_facts(ours: Mapping[str, str], theirs: Mapping[str, str], host: str) -> None:
    for name, value in ours.items():
        other = theirs.get(name, "unknown")
        if other != value:
            values = {"leader": value, "follower": other}
            raise StageError("stage.mismatch", fact=name, host=host, **values)
