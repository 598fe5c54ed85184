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
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError

from omlx.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Host:
    """One machine: its name for ssh, its addresses, its RDMA devices by rank."""

    ssh: Annotated[str, Field(min_length=1)]
    ips: list[str] = field(default_factory=list)
    rdma: list[Any] = field(default_factory=list)

    @property
    def address(self) -> str:
        """The address for the ring and the links."""
        return self.ips[0]

    @property
    def local(self) -> bool:
        """Whether it is reached without ssh: an address of the loopback interface."""
        return ip_address(self.address).is_loopback


@dataclass(frozen=True, slots=True)
class Hosts:
    """The machines by rank. `envs` are variables that every process gets, as NAME=value."""

    hosts: list[Host]
    backend: Literal["ring", "jaccl"] = "ring"
    envs: list[Annotated[str, Field(pattern="^[^=]+=")]] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of every process that is started here."""
        return {**os.environ, **dict(env.split("=", 1) for env in self.envs)}

    def follower(self, rank: int, *arguments: str, search: Iterable[str] = ()) -> list[str]:
        """Return the command that runs `omlx stage` on the host of this rank, by ssh or here.

        `search`: flags that name folders of models on this machine.
        """
        host = self.hosts[rank]
        if host.local:
            return [sys.executable, "-m", "omlx", "stage", *arguments, *search]
        remote = shlex.join(["env", *self.envs, "omlx", "stage", *arguments])
        return ["ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", host.ssh, remote]


_HOSTFILE: Final = TypeAdapter(Hosts)


def read_hosts(text: str) -> Hosts:
    """Read a hostfile, or a list of addresses separated by commas. Raises ConfigError."""
    path = Path(text).expanduser()
    content: Any = [{"ssh": name.strip()} for name in text.split(",")]
    try:
        if path.suffix == ".json" or path.is_file():
            content = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(content, list):
            content = {"hosts": content}
        if isinstance(content, dict):  # what is empty or null has its default
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
    """Return a host with one address: its first one in the hostfile, or that of its name."""
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
