"""Addresses of servers: listening socket, `server.json` for other commands, `--lan`.

The socket is opened before any model is loaded, so that a busy port is reported at once. Several
servers may share a home folder; `server.json` has an entry per process, the oldest first.
"""

from __future__ import annotations

import errno
import http.client
import os
import secrets
import shlex
import socket
import ssl
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

from omlx.clients.agents import machine_names
from omlx.errors import ConfigError, os_errors
from omlx.settings.configuration import LiveConfiguration
from omlx.settings.file import locked, read, write
from omlx.settings.schema import Settings

FILE: Final = "server.json"
BACKLOG: Final = 2048
Entries: TypeAlias = dict[str, dict[str, Any]]
"""Servers by process id."""

_NEXT_PORTS: Final = 50
_TIMEOUT_S: Final = 2
_LOOPBACK: Final = {4: ip_address("127.0.0.1"), 6: ip_address("::1")}
"""This machine's address, by IP version."""


def listen(host: str, port: int, command: Sequence[str] = ("omlx", "serve")) -> socket.socket:
    """Return a listening socket; port 0 picks a free port.

    Raises ConfigError, for a busy port with `command` on a free one.
    """
    try:
        return _listen(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            address = f"http://{_bracketed(host)}:{port}"
            words = [*without_flag(command, "--port"), "--port", str(_free_port(host, port))]
            ours = _get(address, "/")[1].startswith(b"omlx ")
            code = "config.port_ours" if ours else "config.port_busy"
            advice = shlex.join(words)
            raise ConfigError(code, port=port, url=address, command=advice) from None
        detail = error.strerror or str(error)
        raise ConfigError("config.address", host=host, port=port, detail=detail) from None


def url(listening: socket.socket, scheme: str = "http") -> str:
    """Return the socket's URL for clients on this machine."""
    host, port = listening.getsockname()[:2]
    address = ip_address(host)
    if address.is_unspecified:  # the socket listens on every address of this machine
        address = _LOOPBACK[address.version]
    return f"{scheme}://{_bracketed(str(address))}:{port}"


def without_flag(words: Sequence[str], flag: str) -> list[str]:
    """Return a command line without a flag and its value."""
    kept = []
    rest = iter(words)
    for word in rest:
        if word == flag:
            next(rest, None)
        elif not word.startswith(f"{flag}="):
            kept.append(word)
    return kept


@dataclass(frozen=True, slots=True)
class Running:
    """A server process of a home folder, and the model folders named at its start."""

    pid: int
    url: str
    folders: tuple[Path, ...] = ()


@contextmanager
def published(home: Path, address: str, folders: Sequence[Path] = ()) -> Iterator[None]:
    """Keep this process's entry in `server.json` during the block; write failures are ignored."""
    pid = str(os.getpid())
    entry = {"url": address, "folders": [str(folder) for folder in folders]}
    _update(home, lambda entries: {**entries, pid: entry})
    try:
        yield
    finally:
        _update(home, lambda entries: {key: entries[key] for key in entries if key != pid})


def running(home: Path) -> list[Running]:
    """Return the entries of living processes, the oldest first. Asks no server."""
    found = []
    for pid, entry in _living(read(home / FILE).values).items():
        folders = tuple(map(Path, entry.get("folders", ())))
        found.append(Running(int(pid), str(entry["url"]), folders))
    return found


def find_servers(home: Path) -> list[Running]:
    """Return the responsive servers running with `home`, the oldest first."""
    return [server for server in running(home) if _answers(server.url)]


def find_server(home: Path) -> str | None:
    """Return the address of the oldest server running with `home`, if responsive."""
    return next((server.url for server in running(home) if _answers(server.url)), None)


def _update(home: Path, change: Callable[[Entries], Entries]) -> None:
    path = home / FILE
    with suppress(ConfigError, OSError), locked(home):
        content = read(path, held=True)
        if content.foreign:
            return
        entries = change(_living(content.values))
        if entries:
            write(path, {"servers": entries})
        else:
            path.unlink(missing_ok=True)


def _living(values: Mapping[str, Any]) -> Entries:
    """Return the entries of existing processes; a killed process leaves an entry."""
    entries = values.get("servers")
    if not isinstance(entries, dict):
        return {}
    return {pid: entry for pid, entry in entries.items() if _lives(pid) and "url" in entry}


def _lives(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except PermissionError:  # of another user
        return True
    except (OSError, ValueError):
        return False
    return True


def _answers(address: str) -> bool:
    status, body = _get(address, "/health")
    # 503: the server runs, though unable to serve.
    return status in (200, 503) and b'"status"' in body


def _get(address: str, path: str) -> tuple[int, bytes]:
    """Return status and the first bytes of an answer; status 0 without any."""
    connection = connect(address, _TIMEOUT_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read(4096)
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def connect(address: str, timeout_s: float) -> http.client.HTTPConnection:
    """Return a connection to a server on this machine, not opened yet."""
    parts = urlsplit(address)
    host = parts.hostname or ""
    if parts.scheme == "http":
        return http.client.HTTPConnection(host, parts.port, timeout=timeout_s)
    # The certificate is for the server's name, and this address is the loopback interface.
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    return http.client.HTTPSConnection(host, parts.port, timeout=timeout_s, context=trusting)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _listen(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    listening.setblocking(False)
    return listening


def _free_port(host: str, port: int) -> int:
    """Return the next free port within `_NEXT_PORTS`; 0 if none."""
    for candidate in range(port + 1, min(port + _NEXT_PORTS, 65535)):
        with suppress(OSError):
            _listen(host, candidate).close()
            return candidate
    return 0


EVERYWHERE: Final = "0.0.0.0"
_KEY_BYTES: Final = 24


def open_to_network(arguments: Namespace, settings: Settings) -> None:
    """Set the flags of a server for the network: all addresses, and this machine's names.

    Names allowed by `settings`, as they are without `--lan`, stay allowed.
    """
    if arguments.host is None:
        arguments.host = EVERYWHERE
    arguments.allow_host = [*settings.allow_host, *machine_names()]


def ensure_key(configuration: LiveConfiguration) -> None:
    """Store a new API key unless one is set. Raises ConfigError."""
    if configuration.current.resolve().settings.api_key is None:
        configuration.patch({"api_key": secrets.token_urlsafe(_KEY_BYTES)})


def check_certificate(settings: Settings) -> None:
    """Raise ConfigError unless certificate and key, if set, can be read and belong together."""
    certificate, key = settings.tls_cert, settings.tls_key
    if certificate is None:
        if key is not None:
            raise ConfigError("config.tls_alone")
        return
    with os_errors(ConfigError, "config.tls", file=str(certificate)):  # with ssl.SSLError
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)
