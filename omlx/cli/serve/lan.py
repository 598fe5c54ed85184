"""`omlx serve` for other machines: addresses and names of the network, a key, a certificate."""

from __future__ import annotations

import secrets
import socket
import ssl
from argparse import Namespace
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

from omlx.errors import ConfigError
from omlx.settings.configuration import LiveConfiguration
from omlx.settings.schema import Settings

EVERYWHERE: Final = "0.0.0.0"
_KEY_BYTES: Final = 24
_OUTSIDE: Final = ("192.0.2.1", 9)
"""Address for documentation, never in use: the system names the interface, and sends nothing."""


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
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)
    except OSError as error:  # with ssl.SSLError
        detail = error.strerror or str(error)
        raise ConfigError("config.tls", file=str(certificate), detail=detail) from error


def machine_names() -> list[str]:
    """Return this machine's names on the local network, Bonjour's first."""
    name = socket.gethostname().lower().removesuffix(".local")
    return [f"{name}.local", name]


def network_urls(address: str) -> list[str]:
    """Return URLs for other machines of the local network, of the server at `address`."""
    parts = urlsplit(address)
    hosts = [machine_names()[0]]
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(_OUTSIDE)  # without a network there is no route
        hosts.insert(0, str(probe.getsockname()[0]))
    return [f"{parts.scheme}://{host}:{parts.port}" for host in hosts]
