"""Images from http(s) addresses, where the settings allow them.

A name is resolved once, and the connection goes to that address, if it is a public one: a name that
resolves to another address a moment later leads nowhere. No redirects, no proxies, no cookies.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Final, TypeAlias
from urllib.parse import SplitResult, urlsplit

import h11

from omlx.errors import BadRequest
from omlx.server.http.errors import field_error
from omlx.server.request.media.parts import MAX_BYTES, too_large

Address: TypeAlias = IPv4Address | IPv6Address
Resolve: TypeAlias = Callable[[str, int], Awaitable[list[Address]]]

TIMEOUT_S: Final = 10.0
PORTS: Final = {"http": 80, "https": 443}
_CHUNK: Final = 64 << 10
_TRANSLATED: Final = IPv6Network("64:ff9b::/96")
"""IPv6 addresses that lead to IPv4 addresses (NAT64, RFC 6052)."""


def is_public(address: Address, port: int) -> bool:
    """Whether a connection to an address leaves this machine and its networks."""
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is not None:
            return is_public(inner, port)
        if address in _TRANSLATED or address.teredo or address.is_site_local:
            return False
    special = address.is_multicast or address.is_reserved or address.is_unspecified
    return address.is_global and not special and port in PORTS.values()


async def resolve(host: str, port: int) -> list[Address]:
    """Return the addresses of a name. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=1)  # SOCK_STREAM
    return [ip_address(str(sockaddr[0]).partition("%")[0]) for *_, sockaddr in found]


class UrlReader:
    """`allowed` says to which addresses and ports connections may go."""

    def __init__(
        self,
        resolve: Resolve = resolve,
        allowed: Callable[[Address, int], bool] = is_public,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._resolve = resolve
        self._allowed = allowed
        self._timeout_s = timeout_s

    async def read(self, url: str, field: str) -> bytes:
        """Return the file at an address.

        Raises BadRequest about `field` for addresses that are not public, for anything but a
        complete answer with status 200 in time, and for files beyond `MAX_BYTES`.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._read(url, field)
        except TimeoutError as error:
            raise _failed(field, f"{self._timeout_s:g} s") from error
        except (OSError, ValueError, h11.RemoteProtocolError, h11.LocalProtocolError) as error:
            raise _failed(field, type(error).__name__) from error

    async def _read(self, url: str, field: str) -> bytes:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or PORTS[parts.scheme]
        if not host or parts.username is not None:
            raise field_error("image.source", field)
        addresses = await self._resolve(host, port)
        if not addresses or not all(self._allowed(address, port) for address in addresses):
            raise field_error("image.url_private", field)
        secure = ssl.create_default_context() if parts.scheme == "https" else None
        name = host if secure else None
        reader, writer = await asyncio.open_connection(
            str(addresses[0]), port, ssl=secure, server_hostname=name
        )
        try:
            return await _exchange(reader, writer, parts, field)
        finally:
            writer.close()


async def _exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, parts: SplitResult, field: str
) -> bytes:
    """Send one request and return the body of its answer. Raises BadRequest; RemoteProtocolError
    for what is not HTTP."""
    connection, body = h11.Connection(h11.CLIENT), bytearray()
    for event in (_request(parts), h11.EndOfMessage()):
        writer.write(connection.send(event) or b"")
    while True:
        match connection.next_event():
            case h11.Response(status_code=status) if status != 200:
                raise _failed(field, f"HTTP {status}")
            case h11.Data(data=data):
                body += data
                if len(body) > MAX_BYTES:
                    raise too_large(field)
            case h11.EndOfMessage():
                return bytes(body)
            case h11.NEED_DATA:
                connection.receive_data(await reader.read(_CHUNK))
            case _:
                pass  # headers, and informational answers before the real one


def _request(parts: SplitResult) -> h11.Request:
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    headers = [
        ("host", parts.netloc),
        ("accept", "image/*"),
        ("accept-encoding", "identity"),
        ("user-agent", "omlx"),
        ("connection", "close"),
    ]
    return h11.Request(method="GET", target=target, headers=headers)


def _failed(field: str, detail: str) -> BadRequest:
    return field_error("image.url_failed", field, detail=detail)
