"""The machines of a staged model: mlx's hostfile, or a list of addresses.

    {"backend": "ring", "envs": ["NAME=value"], "hosts": [{"ssh": "mac1", "ips": ["10.0.0.1"]}]}
    127.0.0.1,127.0.0.1

The first host is this machine, which leads. As `mlx.distributed_config` writes it and `mlx.launch`
reads it; imports no mlx.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from omlx.errors import ConfigError

BACKENDS: Final = ("ring", "jaccl")


@dataclass(frozen=True, slots=True)
class Host:
    """One machine: its name for ssh, its address for the ring, its RDMA devices by rank."""

    ssh: str
    address: str
    rdma: tuple[Any, ...] = ()

    @property
    def local(self) -> bool:
        """Whether it is reached without ssh: an address of the loopback interface."""
        return ip_address(self.address).is_loopback


@dataclass(frozen=True, slots=True)
class Hosts:
    """The machines by rank. `envs` are variables that every process gets, as NAME=value."""

    hosts: tuple[Host, ...]
    backend: str = "ring"
    envs: tuple[str, ...] = ()

    @property
    def environment(self) -> dict[str, str]:
        """The environment of every process that is started here."""
        return {**os.environ, **dict(env.split("=", 1) for env in self.envs)}

    def follower(self, rank: int, *arguments: str) -> list[str]:
        """Return the command that runs `omlx stage` on the host of this rank, by ssh or here."""
        host = self.hosts[rank]
        if host.local:
            return [sys.executable, "-m", "omlx", "stage", *arguments]
        remote = shlex.join(["env", *self.envs, "omlx", "stage", *arguments])
        return ["ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", host.ssh, remote]


def read_hosts(text: str) -> Hosts:
    """Read a hostfile, or a list of addresses separated by commas. Raises ConfigError."""
    path = Path(text).expanduser()
    if path.suffix == ".json" or path.is_file():
        return _checked(_from_file(path), text)
    names = [name.strip() for name in text.split(",")]
    return _checked(Hosts(tuple(Host(name, _address(name, ())) for name in names)), text)


def _from_file(path: Path) -> Hosts:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise _wrong(str(path), error.strerror or str(error)) from None
    except ValueError as error:
        raise _wrong(str(path), f"it is not JSON: {error}") from None
    if isinstance(content, list):
        content = {"hosts": content}
    if not isinstance(content, dict) or not isinstance(content.get("hosts"), list):
        raise _wrong(str(path), 'it has no list "hosts"')
    envs = content.get("envs") or []
    if not isinstance(envs, list) or not all(isinstance(env, str) and "=" in env for env in envs):
        raise _wrong(str(path), '"envs" is a list of NAME=value')
    hosts = [_host(str(path), number, entry) for number, entry in enumerate(content["hosts"])]
    return Hosts(tuple(hosts), str(content.get("backend") or "ring"), tuple(envs))


def _host(where: str, number: int, entry: object) -> Host:
    if not isinstance(entry, dict) or not isinstance(entry.get("ssh"), str) or not entry["ssh"]:
        raise _wrong(where, f'host {number} has no "ssh"')
    ips, rdma = entry.get("ips") or [], entry.get("rdma") or []
    if not isinstance(ips, list) or not isinstance(rdma, list):
        raise _wrong(where, f'"ips" and "rdma" of host {number} are lists')
    return Host(entry["ssh"], _address(entry["ssh"], ips), tuple(rdma))


def _address(name: str, ips: Sequence[object]) -> str:
    """Return the address of a host: its first one in the hostfile, or that of its name."""
    first = str(ips[0]) if ips else name
    try:
        return str(ip_address(first))
    except ValueError:
        pass
    try:
        return socket.gethostbyname(first)
    except OSError:
        raise ConfigError("stage.host_unknown", host=first) from None


def _checked(hosts: Hosts, text: str) -> Hosts:
    if hosts.backend not in BACKENDS:
        raise _wrong(text, f'the backend "{hosts.backend}" is none of {", ".join(BACKENDS)}')
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
