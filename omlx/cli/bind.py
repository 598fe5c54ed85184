"""The socket that the server listens on: taken before anything is loaded, so that a busy port is known at once."""

from __future__ import annotations

import errno
import socket
from ipaddress import ip_address

from omlx.errors import ConfigError

BACKLOG = 2048
_NEXT_PORTS = 50


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 picks a free one. Raises ConfigError, which names a port that is free."""
    try:
        return _listen(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError("config.port_busy", port=port, free=_free_port(host, port)) from None
        detail = error.strerror or str(error)
        raise ConfigError("config.address", host=host, port=port, detail=detail) from None


def url(listening: socket.socket) -> str:
    """Where a client on this machine reaches the socket."""
    host, port = listening.getsockname()[:2]
    address = ip_address(host)
    if address.is_unspecified:
        address = ip_address("127.0.0.1" if address.version == 4 else "::1")
    return f"http://[{address}]:{port}" if address.version == 6 else f"http://{address}:{port}"


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
    """The next port that can be had; 0 if there is none nearby."""
    for candidate in range(port + 1, min(port + _NEXT_PORTS, 65535)):
        try:
            _listen(host, candidate).close()
        except OSError:
            continue
        return candidate
    return 0
