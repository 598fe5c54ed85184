"""`omlx serve --lan`: reachable from the local network, by address and name, with a key."""

from __future__ import annotations

import secrets
import socket
from argparse import Namespace
from contextlib import suppress
from typing import Final

from omlx.settings.configuration import LiveConfiguration

EVERYWHERE: Final = "0.0.0.0"
_KEY_BYTES: Final = 24
_OUTSIDE: Final = ("192.0.2.1", 9)
"""Address for documentation, never in use: the system names the interface, and sends nothing."""


def open_to_network(arguments: Namespace) -> None:
    """Set the flags of a server for the network: all addresses, and this machine's names."""
    if arguments.host is None:
        arguments.host = EVERYWHERE
    arguments.allow_host = [*(arguments.allow_host or ()), *machine_names()]


def ensure_key(configuration: LiveConfiguration) -> None:
    """Store a new API key unless one is set. Raises ConfigError."""
    if configuration.current.resolve().settings.api_key is None:
        configuration.patch({"api_key": secrets.token_urlsafe(_KEY_BYTES)})


def machine_names() -> list[str]:
    """Return this machine's names on the local network, Bonjour's first."""
    name = socket.gethostname().lower().removesuffix(".local")
    return [f"{name}.local", name]


def network_urls(port: int) -> list[str]:
    """Return URLs for other machines of the local network."""
    hosts = [machine_names()[0]]
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(_OUTSIDE)  # without a network there is no route
        hosts.insert(0, str(probe.getsockname()[0]))
    return [f"http://{host}:{port}" for host in hosts]
