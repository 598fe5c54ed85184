"""Access control: ASGI middleware outside of everything but CORS and the access log.

- Host must be a loopback name, an IP address, or allowed: a page that rebinds its own DNS name to
  127.0.0.1 sends that name. An address in Host cannot come from a rebound name.
- Origin, if a browser sends one, must be the server itself or allowed, on every method that can
  change something. Below `/admin` it must be the server itself: a page on another port of the host
  is same-site, so its requests carry the session cookie.
- API key, if one is set, and limits on the body's length and on pauses within it.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omlx.errors import ConfigError, Forbidden, OmlxError, TooLarge, TooSlow, Unauthorized
from omlx.server import errors
from omlx.server.notes import note

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
OPEN_PATHS: Final = frozenset({"/health"})
DASHBOARD: Final = "/admin"
"""Paths below it use sessions instead of API keys."""


@dataclass(slots=True)
class ApiKey:
    """The key in use, or None. It may change while the server runs."""

    value: str | None = None


class AccessGuard:
    """`hosts` and `origins` are allowed beside the built-in ones; "*" allows any.

    The key comes as `Authorization: Bearer` or `x-api-key`. A body may have at most
    `max_body_bytes`, whatever its Content-Length says, and pause for at most `body_timeout_s`.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Iterable[str] = (),
        origins: Iterable[str] = (),
        key: ApiKey | None = None,
        max_body_bytes: int = 32 << 20,
        body_timeout_s: float = 60,
    ) -> None:
        self._app = app
        self._hosts = {"localhost", *(host.lower() for host in hosts)}
        self._origins = {origin.lower().rstrip("/") for origin in origins}
        self._key = key or ApiKey()
        self._max_body_bytes = max_body_bytes
        self._body_timeout_s = body_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            self._check_host(headers.get("host", ""))
            if scope["method"] not in SAFE_METHODS:
                self._check_origin(headers.get("origin"), headers.get("host", ""), scope["path"])
            if (key := self._key.value) is not None and not _is_open(scope["path"]):
                self._check_key(scope, key)
            self._check_length(headers.get("content-length"))
        except OmlxError as error:
            note(scope, error)
            await errors.response(error, scope)(scope, receive, send)
            return
        await self._app(
            scope, _BoundedReceive(receive, self._max_body_bytes, self._body_timeout_s), send
        )

    def _check_host(self, host: str) -> None:
        name = hostname(host)
        if name not in self._hosts and "*" not in self._hosts and not _is_address(name):
            raise Forbidden("guard.host", host=host)

    def _check_origin(self, origin: str | None, host: str, path: str) -> None:
        own = (f"http://{host}".lower(), f"https://{host}".lower())
        if origin is None or origin.lower() in own:
            return
        allowed = "*" in self._origins or origin.lower() in self._origins
        if not allowed or is_dashboard(path):
            raise Forbidden("guard.origin", origin=origin)

    def _check_key(self, scope: Scope, key: str) -> None:
        names = (b"authorization", b"x-api-key")
        keys = [_bearer(value) for name, value in scope["headers"] if name in names]
        if not keys:
            raise Unauthorized("auth.missing")
        if not any(same_key(sent, key) for sent in keys):
            raise Unauthorized("auth.key")

    def _check_length(self, length: str | None) -> None:
        if length is not None and length.isdigit() and int(length) > self._max_body_bytes:
            raise TooLarge("guard.body", limit_bytes=self._max_body_bytes)


class _BoundedReceive:
    """A `receive` that raises TooLarge and TooSlow to the reader of the body.

    After the body it waits for the client to disconnect, without a time-out.
    """

    def __init__(self, receive: Receive, max_bytes: int, body_timeout_s: float) -> None:
        self._receive = receive
        self._max_bytes = max_bytes
        self._timeout_s: float | None = body_timeout_s
        self._read = 0

    async def __call__(self) -> Message:
        try:
            async with asyncio.timeout(self._timeout_s):
                message = await self._receive()
        except TimeoutError as error:
            raise TooSlow("guard.slow", limit_s=self._timeout_s) from error
        if not message.get("more_body", False):
            self._timeout_s = None
        self._read += len(message.get("body", b""))
        if self._read > self._max_bytes:
            raise TooLarge("guard.body", limit_bytes=self._max_bytes)
        return message


def same_key(sent: bytes, key: str) -> bool:
    """Compare header bytes with the key as UTF-8 or, as some clients send it, Latin-1; each in
    constant time."""
    matches = hmac.compare_digest(sent, key.encode())
    return hmac.compare_digest(sent, key.encode("latin-1", "backslashreplace")) or matches


def hostname(host: str) -> str:
    """The name of a Host header: lower case, without port, brackets or final dot."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_open(path: str) -> bool:
    return path in OPEN_PATHS or is_dashboard(path)


def is_dashboard(path: str) -> bool:
    """Whether a path belongs to the dashboard."""
    return path == DASHBOARD or path.startswith(f"{DASHBOARD}/")


def check_exposure(host: str, api_key: str | None) -> None:
    """Raise ConfigError if other machines could reach the server without a key."""
    if api_key is None and not is_loopback(host):
        raise ConfigError("config.exposed", host=host)


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    return _is_address(host) and ip_address(host).is_loopback


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _bearer(value: bytes) -> bytes:
    scheme, _, key = value.partition(b" ")
    if scheme.lower() == b"bearer":
        return key.strip()
    return value.strip()
