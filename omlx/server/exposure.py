"""Whether others than this machine could reach the server."""

from __future__ import annotations

from ipaddress import ip_address

from omlx.errors import ConfigError


def check_exposure(host: str, api_key: str | None) -> None:
    """Raise ConfigError if others could reach the server without a key."""
    if api_key is None and not is_loopback(host):
        raise ConfigError("config.exposed", host=host)


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
