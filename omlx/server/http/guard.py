"""Access control: ASGI middleware outside of everything but CORS and the access log.

- Host must be a loopback name, an IP address, or allowed: a page that rebinds its own DNS name to
  127.0.0.1 sends that name. An address in Host cannot come from a rebound name.
- Origin, if a browser sends one, must be the server itself, a desktop app's or allowed: CORS lets a
  page read all that is not refused here. Below `/admin` it must be the server itself: a page on
  another port of the host is same-site, so its requests carry the session cookie.
- API keys, if there are any, the models and the rate of a named one; limits on the body's length
  and on pauses within it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from ipaddress import ip_address
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omlx.errors import ConfigError, Forbidden, OmlxError, TooLarge, TooSlow
from omlx.models.catalog.catalog import restricted_to
from omlx.server.http import errors
from omlx.server.http.body import LARGE_BYTES, trim_soon
from omlx.server.http.connection import note
from omlx.server.http.keys import ApiKeys, is_dashboard
from omlx.settings.keys import KeyFile
from omlx.settings.origins import allows
from omlx.settings.schema import Settings

DESKTOP_APPS: Final = ("app://*", "tauri://*", "vscode-webview://*", "vscode-file://*")
"""Origins of web views of installed programs, which no page on the web can have."""
_HOST: Final = re.compile(r"(?:\[(?P<address>[\w:.%-]+)\]|(?P<name>[\w.-]+))(?::\d*)?")
OPEN_PATHS: Final = frozenset({"/health"})


class AccessGuard:
    """`hosts` and `origins` are allowed beside the built-in ones; "*" allows any.

    A key comes as `Authorization: Bearer` or `x-api-key`. A body may have at most
    `max_body_bytes`, whatever its Content-Length says, and pause for at most `body_timeout_s`.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Iterable[str] = (),
        origins: Iterable[str] = (),
        keys: ApiKeys | None = None,
        max_body_bytes: int = 32 << 20,
        body_timeout_s: float = 60,
    ) -> None:
        self._app = app
        self._hosts = {"localhost", *(host.lower() for host in hosts)}
        self._origins = (*DESKTOP_APPS, *origins)
        self._keys = keys or ApiKeys()
        self._max_body_bytes = max_body_bytes
        self._body_timeout_s = body_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            self._check_host(headers.get("host", ""))
            self._check_origin(headers.get("origin"), headers.get("host", ""), scope["path"])
            models = self._admit(scope)
            self._check_length(headers.get("content-length"))
        except OmlxError as error:
            note(scope, error)
            await errors.response(error, scope)(scope, receive, send)
            return
        body = _BoundedReceive(receive, self._max_body_bytes, self._body_timeout_s)
        try:
            with restricted_to(models):
                await self._app(scope, body, send)
        finally:
            if body.read_bytes >= LARGE_BYTES:
                trim_soon()

    def _check_host(self, host: str) -> None:
        name = hostname(host)
        if name not in self._hosts and "*" not in self._hosts and not _is_address(name):
            raise Forbidden("guard.host", host=host)

    def _check_origin(self, origin: str | None, host: str, path: str) -> None:
        own = (f"http://{host}".lower(), f"https://{host}".lower())
        if origin is None or origin.lower() in own:
            return
        if is_dashboard(path) or not allows(self._origins, origin):
            raise Forbidden("guard.origin", origin=origin)

    def _admit(self, scope: Scope) -> Sequence[str] | None:
        """Return patterns of the models that a request may use, None for all.

        Raises Unauthorized, TooManyRequests.
        """
        if _is_open(scope["path"]):
            return None
        key = self._keys.admit(scope)
        return None if key is None or key.may_use_all else key.models

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
        self.read_bytes = 0

    async def __call__(self) -> Message:
        try:
            async with asyncio.timeout(self._timeout_s):
                message = await self._receive()
        except TimeoutError as error:
            raise TooSlow("guard.slow", limit_s=self._timeout_s) from error
        if not message.get("more_body", False):
            self._timeout_s = None
        self.read_bytes += len(message.get("body", b""))
        if self.read_bytes > self._max_bytes:
            raise TooLarge("guard.body", limit_bytes=self._max_bytes)
        return message


def hostname(host: str) -> str:
    """The name of a Host header: lower case, without port, brackets or final dot.

    Empty if the header is anything but a host and an optional port.
    """
    match = _HOST.fullmatch(host.lower())
    if match is None:
        return ""
    return (match["address"] or match["name"]).rstrip(".")


def _is_open(path: str) -> bool:
    return path in OPEN_PATHS or is_dashboard(path)


def check_exposure(host: str, api_key: str | None) -> None:
    """Raise ConfigError if other machines could reach the server without a key."""
    if api_key is None and not is_loopback(host):
        raise ConfigError("config.exposed", host=host)


def check_keys(settings: Settings) -> None:
    """Raise ConfigError before a start if other machines could reach the server without a key, or
    if the file of named keys is invalid."""
    check_exposure(settings.host, settings.api_key)
    KeyFile(settings.home).read()


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
