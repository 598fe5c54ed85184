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
import hmac
import logging
import math
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from types import MappingProxyType
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omlx.errors import (
    ConfigError,
    Forbidden,
    OmlxError,
    Reason,
    TooLarge,
    TooManyRequests,
    TooSlow,
    Unauthorized,
)
from omlx.models.catalog.catalog import restricted_to
from omlx.records import AppliedSetting, PromptText
from omlx.server.http import errors
from omlx.server.http.transport import LARGE_BYTES, note, trim_soon
from omlx.settings.file import FileStamp, file_stamp
from omlx.settings.keys import KeyFile, NamedKey, digest
from omlx.settings.schema import Settings
from omlx.settings.types import allows

MAIN_KEY: Final = "api_key"
"""Name of the key of the setting `api_key`."""
OWNER: Final = "omlx.owner"
"""Entry of a scope: who a request is for, in place of its key's name."""
_NAME: Final = "omlx.key"
_MINUTE_S: Final = 60.0

log = logging.getLogger("omlx.server")


class ApiKeys:
    """The keys in use. `main` may change while the server runs. `clock`: monotonic seconds.

    Raises ConfigError for a `file` that is invalid from the start.
    """

    def __init__(
        self,
        main: str | None = None,
        file: KeyFile | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.main = main
        self.file = file
        self._clock = clock
        self.problem: ConfigError | None = None
        """Why the content of the file does not count."""
        self._named: Mapping[str, NamedKey] = MappingProxyType({})
        self._stamp: FileStamp = None
        self._seen_file = False
        self._arrivals: dict[str, deque[float]] = {}
        if file is not None:
            self._read(file)

    @property
    def required(self) -> bool:
        self._refresh()
        return self.main is not None or self._seen_file

    @property
    def named(self) -> Sequence[NamedKey]:
        """The named keys in force, the oldest first."""
        self._refresh()
        return tuple(self._named.values())

    def admit(self, scope: Scope) -> NamedKey | None:
        """Return the named key of a request, and count the request; None: it has the main key, or
        needs none.

        Raises Unauthorized, and TooManyRequests over the rate of the key.
        """
        if not self.required:
            return None
        keys = sent_keys(scope)
        if not keys:
            raise Unauthorized("auth.missing")
        if self.main is not None and any(same_key(sent, self.main) for sent in keys):
            scope[_NAME] = MAIN_KEY
            return None
        found = filter(None, (self._named.get(digest(sent)) for sent in keys))
        key = next(found, None)
        if key is None:
            raise Unauthorized("auth.key")
        scope[_NAME] = key.name
        if scope["method"] == "POST" and key.requests_per_minute is not None:
            self._count(key.sha256, key.requests_per_minute)
        return key

    def _count(self, key: str, limit: int) -> None:
        """Count a request of the last minute. Raises TooManyRequests for one over `limit`."""
        now, arrivals = self._clock(), self._arrivals.setdefault(key, deque())
        while arrivals and arrivals[0] <= now - _MINUTE_S:
            arrivals.popleft()
        if len(arrivals) >= limit:
            wait_s = math.ceil(arrivals[len(arrivals) - limit] + _MINUTE_S - now)
            raise TooManyRequests("auth.rate", retry_after_s=wait_s, limit=limit, seconds=wait_s)
        arrivals.append(now)

    def _refresh(self) -> None:
        """Read the file if it has changed. What is invalid is logged, once."""
        if self.file is None or file_stamp(self.file.path) == self._stamp:
            return
        try:
            self._read(self.file)
        except ConfigError as error:
            self.problem = error
            details = {"code": error.code, "detail": error.message}
            log.warning("API keys not changed", extra={"fields": details})

    def _read(self, file: KeyFile) -> None:
        self._stamp = file_stamp(file.path)  # of before: a change meanwhile is read next time
        if self._stamp is not None:
            self._seen_file = True
        self._named = {key.sha256: key for key in file.read()}
        self.problem = None
        self._arrivals = {
            key: arrivals for key, arrivals in self._arrivals.items() if key in self._named
        }


def key_of(scope: Scope) -> str:
    """Return the name of the key that a request was let in with; empty if it needed none."""
    return str(scope.get(_NAME, ""))


def is_named(scope: Scope) -> bool:
    """Whether a request was let in with a named key."""
    return key_of(scope) not in ("", MAIN_KEY)


def owner_of(scope: Scope) -> str:
    """Return the owner of a request's results: `OWNER`, or the name of a named key.

    Empty for the server's own key, and for none.
    """
    return str(scope.get(OWNER) or (key_of(scope) if is_named(scope) else ""))


def check_main(scope: Scope) -> None:
    """Raise Forbidden for a named key: what follows concerns the whole server."""
    if is_named(scope):
        raise Forbidden("auth.main_key")


def sent_keys(scope: Scope) -> list[bytes]:
    names = (b"authorization", b"x-api-key")
    headers: Iterable[tuple[bytes, bytes]] = scope["headers"]
    return [_bearer(value) for name, value in headers if name in names]


def same_key(sent: bytes, key: str) -> bool:
    """Compare header bytes with the key as UTF-8 or, as some clients send it, Latin-1; each in
    constant time."""
    matches = hmac.compare_digest(sent, key.encode())
    return hmac.compare_digest(sent, key.encode("latin-1", "backslashreplace")) or matches


def _bearer(value: bytes) -> bytes:
    scheme, _, key = value.partition(b" ")
    if scheme.lower() == b"bearer":
        return key.strip()
    return value.strip()


_DASHBOARD_PATH: Final = "/admin"
"""Paths below it use sessions instead of API keys."""
DASHBOARD: Final = "dashboard"
"""Client, and name of the key, of requests from the dashboard's own pages."""

_SHOWN: Final = 120
"""Characters kept of a User-Agent."""
_SUBAGENT: Final = "x-openai-subagent"
"""Header with which Codex marks requests of sub-agents."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Sender of a request: program by User-Agent, name of the API key, kind of sub-agent by header.

    Absent parts are empty."""

    client: str = ""
    key: str = ""
    subagent: str = ""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request whose body arrived `at` seconds on a monotonic clock.

    `load_s`: wait for the model. `prompt`: its end, where a setting allows to keep texts. `guess`:
    the reason of a guessed priority. `after_tool`: the result of a tool ends the prompt.
    """

    at: float
    caller: Caller = field(default_factory=Caller)
    prompt: tuple[PromptText, ...] | None = None
    guess: Reason | None = None
    load_s: float = 0.0
    settings: tuple[AppliedSetting, ...] = ()
    after_tool: bool = False


def is_dashboard(path: str) -> bool:
    return path == _DASHBOARD_PATH or path.startswith(f"{_DASHBOARD_PATH}/")


def caller_of(scope: Scope) -> Caller:
    if is_dashboard(scope["path"]):
        return Caller(DASHBOARD, DASHBOARD)
    headers = Headers(scope=scope)
    client, subagent = headers.get("user-agent", ""), headers.get(_SUBAGENT, "")
    return Caller(client[:_SHOWN], key_of(scope), subagent[:_SHOWN])


DESKTOP_APPS: Final = ("app://*", "tauri://*", "vscode-webview://*", "vscode-file://*")
"""Origins of web views of installed programs, which no page on the web can have."""
_HOST: Final = re.compile(r"(?:\[(?P<address>[\w:.%-]+)\]|(?P<name>[\w.-]+))(?::\d*)?")
OPEN_PATHS: Final = frozenset({"/health"})


class AccessGuard:
    """Guard of all paths. `hosts` and `origins` add to the built-in ones; "*" allows any.

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
        if scope["path"] in OPEN_PATHS or is_dashboard(scope["path"]):
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
