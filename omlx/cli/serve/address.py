"""The server's address: the listening socket, and `server.json` for other commands.

The socket is opened before any model is loaded, so that a busy port is reported at once.
"""

from __future__ import annotations

import errno
import http.client
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from omlx.errors import ConfigError
from omlx.settings.file import locked, read, write

FILE: Final = "server.json"
BACKLOG: Final = 2048
_NEXT_PORTS: Final = 50
_TIMEOUT_S: Final = 2
_LOOPBACK: Final = {4: ip_address("127.0.0.1"), 6: ip_address("::1")}
"""This machine's address, by IP version."""


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 picks a free port.

    Raises ConfigError, for a busy port with a free one.
    """
    try:
        return _listen(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError("config.port_busy", port=port, free=_free_port(host, port)) from None
        detail = error.strerror or str(error)
        raise ConfigError("config.address", host=host, port=port, detail=detail) from None


def url(listening: socket.socket) -> str:
    """Return the socket's URL for clients on this machine."""
    host, port = listening.getsockname()[:2]
    address = ip_address(host)
    if address.is_unspecified:  # the socket listens on every address of this machine
        address = _LOOPBACK[address.version]
    if address.version == 4:
        return f"http://{address}:{port}"
    return f"http://[{address}]:{port}"


@contextmanager
def published(home: Path, address: str) -> Iterator[None]:
    """Keep the address in `server.json` during the block; write failures are ignored."""
    path = home / FILE
    with suppress(ConfigError), locked(home):
        if not read(path, held=True).foreign:
            write(path, {"url": address, "pid": os.getpid()})
    try:
        yield
    finally:
        with suppress(ConfigError, OSError):
            # Another server may have replaced the file meanwhile.
            if read(path).values.get("pid") == os.getpid():
                path.unlink()


def find_server(home: Path) -> str | None:
    """Return the address of the server running with `home`, if responsive."""
    address = read(home / FILE).values.get("url")
    if isinstance(address, str) and _answers(address):
        return address
    return None


def _answers(address: str) -> bool:
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/health")
        response = connection.getresponse()
        # 503: the server runs, though unable to serve.
        return response.status in (200, 503) and b'"status"' in response.read(4096)
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


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
