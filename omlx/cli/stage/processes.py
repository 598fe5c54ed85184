"""The processes of a group: their hosts, start and end. No mlx.

    {"backend": "ring", "envs": ["NAME=value"], "hosts": [{"ssh": "mac1", "ips": ["10.0.0.1"]}]}
    127.0.0.1,127.0.0.1

The first host is this machine, the leader. Hostfiles are in the format of `mlx.distributed_config`
and `mlx.launch`.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError

from omlx.engine.stage.link import Order
from omlx.errors import ConfigError, StageError


@dataclass(frozen=True, slots=True)
class Host:
    """A machine: name for ssh, addresses, RDMA devices by rank."""

    ssh: Annotated[str, Field(min_length=1)]
    ips: list[str] = field(default_factory=list)
    rdma: list[Any] = field(default_factory=list)

    @property
    def address(self) -> str:
        """Address for the ring and the links."""
        return self.ips[0]

    @property
    def local(self) -> bool:
        """Whether ssh is unnecessary: the address is on the loopback interface."""
        return ip_address(self.address).is_loopback


@dataclass(frozen=True, slots=True)
class Hosts:
    """The machines by rank. `envs`: variables of every process, as NAME=value."""

    hosts: list[Host]
    backend: Literal["ring", "jaccl"] = "ring"
    envs: list[Annotated[str, Field(pattern="^[^=]+=")]] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, **dict(env.split("=", 1) for env in self.envs)}

    def follower(self, rank: int, *arguments: str, search: Iterable[str] = ()) -> list[str]:
        """Return the command that runs `omlx stage` on the host `rank`, by ssh or here.

        `search`: flags with folders of models on this machine.
        """
        host = self.hosts[rank]
        if host.local:
            return [sys.executable, "-m", "omlx", "stage", *arguments, *search]
        remote = shlex.join(["env", *self.envs, "omlx", "stage", *arguments])
        return ["ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", host.ssh, remote]


_HOSTFILE: Final = TypeAdapter(Hosts)


def read_hosts(text: str) -> Hosts:
    """Read a hostfile, or comma-separated addresses. Raises ConfigError."""
    path = Path(text).expanduser()
    content: Any = [{"ssh": name.strip()} for name in text.split(",")]
    try:
        if path.suffix == ".json" or path.is_file():
            content = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(content, list):
            content = {"hosts": content}
        if isinstance(content, dict):  # empty or null fields have defaults
            content = {name: value for name, value in content.items() if value}
        hosts = _HOSTFILE.validate_python(content)
    except OSError as error:
        raise _wrong(text, error.strerror or str(error)) from None
    except ValidationError as error:
        first = error.errors()[0]
        raise _wrong(text, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except ValueError as error:
        raise _wrong(text, f"it is not JSON: {error}") from None
    return _checked(replace(hosts, hosts=[_resolved(host) for host in hosts.hosts]), text)


def _resolved(host: Host) -> Host:
    """Return a host with a single address: the hostfile's first, or resolved from `ssh`.

    Raises ConfigError for an unknown host.
    """
    first = host.ips[0] if host.ips else host.ssh
    try:
        return replace(host, ips=[socket.gethostbyname(first)])
    except (OSError, UnicodeError):
        raise ConfigError("stage.host_unknown", host=first) from None


def _checked(hosts: Hosts, text: str) -> Hosts:
    if len(hosts.hosts) < 2:
        raise _wrong(text, "a model in stages needs two hosts or more")
    for host in hosts.hosts:
        if ip_address(host.address).is_unspecified:
            raise _wrong(text, f"{host.address} is every address of a machine; name one")
    if len({host.local for host in hosts.hosts}) > 1:
        raise _wrong(text, "loopback addresses cannot be reached from the other hosts")
    return hosts


def _wrong(where: str, detail: str) -> ConfigError:
    return ConfigError("stage.hostfile", hosts=where, detail=detail)


JOINED: Final = b"j"
SERVING: Final = b"s"
"""Progress of a leader, written to `report`."""

REFUSED: Final = 2
"""Exit status — failures that the user must fix."""

LOST: Final = 75
"""Exit status — a stage was lost, and the supervisor restarts the group."""

SILENT: Final = 76
"""Exit status — a follower timed out on the leader."""

GRACE_S: Final = 2.0
"""Seconds for the leader to report the cause of a lost follower to open requests."""

_ORPHANED_S: Final = 1.0
"""Seconds for open requests after the end of the supervisor."""

JOIN_S: Final = 60.0
"""Seconds within which all processes of a group must have joined."""


def start(
    command: Sequence[str], order: Order, environment: Mapping[str, str], **options: Any
) -> subprocess.Popen[bytes]:
    """Start a process with `options` of Popen, and write its order to standard input.

    Raises StageError.
    """
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C in the terminal reaches the supervisor only
            **options,
        )
    except OSError as error:
        raise StageError("stage.not_started", host=order.host, detail=str(error)) from None
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # an ended process is found out elsewhere
        process.stdin.write(order.to_line())
        process.stdin.flush()
    return process


def reserve_port(address: str) -> socket.socket:
    """Bind a free port of this machine's `address`. Raises ConfigError.

    SO_REUSEPORT: only processes that ask to share the port, as mlx does, can bind it meanwhile.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        reserved.bind((address, 0))
    except OSError as error:
        reserved.close()
        raise ConfigError("stage.address", address=address, detail=str(error)) from None
    return reserved


def end_without_supervisor() -> None:
    """End this process when the supervisor has gone: standard input closes.

    Open requests have `_ORPHANED_S` to finish.
    """

    def watch() -> None:
        sys.stdin.read()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_ORPHANED_S)  # a second signal ends the drain
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=watch, name="omlx-supervisor", daemon=True).start()
