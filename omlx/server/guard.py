"""Who may talk to the server. ASGI middleware, outside of everything else but CORS.

- Host must be a loopback name, an IP address, or allowed: a page that rebinds its own DNS name to 127.0.0.1 sends its
  own name. (An address in Host cannot come from a rebound name.)
- Origin, where a browser sends one, must be the server itself or allowed, on every method that can change something.
  Who is allowed may talk to models, not administer: below `/admin` it must be the server itself. (A page on another
  port of the same name is of the same site, so the session's cookie goes along with what it sends.)
- The API key, if there is one, comes as `Authorization: Bearer` or `x-api-key`, compared as bytes in constant time.
- A body may not be longer than `max_body_bytes`, whatever its Content-Length says, and may not pause for longer than
  `patience_s`.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omlx.errors import Forbidden, OmlxError, TooLarge, TooSlow, Unauthorized
from omlx.server import errors

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
OPEN_PATHS = frozenset({"/health"})
OWN_GATE = "/admin"
"""It and what lies below have sessions in place of keys."""


@dataclass(slots=True)
class ApiKey:
    """The key in use, None for none. It may change while the server runs."""

    value: str | None = None


class Guard:
    """`hosts` and `origins` add to what is always allowed; "*" allows any."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Iterable[str] = (),
        origins: Iterable[str] = (),
        key: ApiKey | None = None,
        max_body_bytes: int = 32 << 20,
        patience_s: float = 60,
    ) -> None:
        self._app = app
        self._hosts = {"localhost", *(host.lower() for host in hosts)}
        self._origins = {origin.lower().rstrip("/") for origin in origins}
        self._key = key or ApiKey()
        self._max_body_bytes = max_body_bytes
        self._patience_s = patience_s

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
            await errors.response(error, scope)(scope, receive, send)
            return
        await self._app(scope, _Bounded(receive, self._max_body_bytes, self._patience_s), send)

    def _check_host(self, host: str) -> None:
        name = hostname(host)
        if name not in self._hosts and "*" not in self._hosts and not _is_address(name):
            raise Forbidden("guard.host", host=host)

    def _check_origin(self, origin: str | None, host: str, path: str) -> None:
        if origin is None or origin.lower() in (
            f"http://{host}".lower(),
            f"https://{host}".lower(),
        ):
            return
        allowed = "*" in self._origins or origin.lower() in self._origins
        if not allowed or has_own_gate(path):
            raise Forbidden("guard.origin", origin=origin)

    def _check_key(self, scope: Scope, key: str) -> None:
        given = [
            value for name, value in scope["headers"] if name in (b"authorization", b"x-api-key")
        ]
        if not given:
            raise Unauthorized("auth.missing")
        if not any(same_key(_bearer(value), key) for value in given):
            raise Unauthorized("auth.key")

    def _check_length(self, length: str | None) -> None:
        if length is not None and length.isdigit() and int(length) > self._max_body_bytes:
            raise TooLarge("guard.body", limit_bytes=self._max_body_bytes)


class _Bounded:
    """A `receive` that counts and looks at the clock; raises TooLarge and TooSlow into whoever reads the body.

    Behind the body it only waits for the end of the connection, for as long as that takes.
    """

    def __init__(self, receive: Receive, max_bytes: int, patience_s: float) -> None:
        self._receive = receive
        self._max_bytes = max_bytes
        self._patience_s: float | None = patience_s
        self._read = 0

    async def __call__(self) -> Message:
        try:
            async with asyncio.timeout(self._patience_s):
                message = await self._receive()
        except TimeoutError as error:
            raise TooSlow("guard.slow", limit_s=self._patience_s) from error
        if not message.get("more_body", False):
            self._patience_s = None
        self._read += len(message.get("body", b""))
        if self._read > self._max_bytes:
            raise TooLarge("guard.body", limit_bytes=self._max_bytes)
        return message


def same_key(given: bytes, key: str) -> bool:
    """Header bytes against the key as UTF-8 or, as some clients send it, Latin-1. Constant time for each."""
    matches = hmac.compare_digest(given, key.encode())
    return hmac.compare_digest(given, key.encode("latin-1", "backslashreplace")) or matches


def hostname(host: str) -> str:
    """The name of a Host header: lower case, without port, brackets or final dot."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_open(path: str) -> bool:
    return path in OPEN_PATHS or has_own_gate(path)


def has_own_gate(path: str) -> bool:
    """Whether it is of the dashboard."""
    return path == OWN_GATE or path.startswith(f"{OWN_GATE}/")


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _bearer(value: bytes) -> bytes:
    scheme, _, key = value.partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else value.strip()
