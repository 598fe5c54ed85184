"""`omlx serve` for other machines: flags, a key, a certificate."""

from __future__ import annotations

import secrets
import ssl
from argparse import Namespace
from typing import Final

from omlx.clients.agents import machine_names
from omlx.errors import ConfigError
from omlx.settings.configuration import LiveConfiguration
from omlx.settings.schema import Settings

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
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)
    except OSError as error:  # with ssl.SSLError
        detail = error.strerror or str(error)
        raise ConfigError("config.tls", file=str(certificate), detail=detail) from error
