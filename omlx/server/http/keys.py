"""API keys: the one of the setting `api_key`, which opens all of the API, and named ones, each with
the models that it may be used for, and a rate.

The file of named keys is looked at by every request that carries a key: a key that is revoked in
another process is refused from then on. Content that is invalid changes nothing. Once this process
has seen the file, requests need a key until it ends: a file that is lost opens no door.
"""

from __future__ import annotations

import hmac
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from starlette.datastructures import Headers
from starlette.types import Scope

from omlx.errors import ConfigError, Forbidden, TooManyRequests, Unauthorized
from omlx.settings.file import FileStamp, file_stamp
from omlx.settings.keys import KeyFile, NamedKey, digest

MAIN_KEY: Final = "api_key"
"""Name of the key of the setting `api_key`."""
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
        """Whether requests need a key."""
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
    name: str = scope.get(_NAME, "")
    return name


def is_named(scope: Scope) -> bool:
    """Whether a request was let in with a named key."""
    return key_of(scope) not in ("", MAIN_KEY)


def owner_of(scope: Scope) -> str:
    """Return the name of the named key that what a request makes belongs to; empty for the
    server's own key, and for none."""
    return key_of(scope) if is_named(scope) else ""


def check_main(scope: Scope) -> None:
    """Raise Forbidden for a named key: what follows concerns the whole server."""
    if is_named(scope):
        raise Forbidden("auth.main_key")


def sent_keys(scope: Scope) -> list[bytes]:
    """Return the keys that a request carries."""
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
"""Characters of a User-Agent that are kept."""


@dataclass(frozen=True, slots=True)
class Caller:
    """`client` is the program as its User-Agent names it, `key` the name of its API key; empty if
    the request has none."""

    client: str = ""
    key: str = ""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request whose body arrived `at` seconds on a monotonic clock. `prompt_text` is the end of
    its prompt, where a setting allows to keep it."""

    at: float
    caller: Caller = field(default_factory=Caller)
    prompt_text: str | None = None


def is_dashboard(path: str) -> bool:
    """Whether a path belongs to the dashboard."""
    return path == _DASHBOARD_PATH or path.startswith(f"{_DASHBOARD_PATH}/")


def caller_of(scope: Scope) -> Caller:
    if is_dashboard(scope["path"]):
        return Caller(DASHBOARD, DASHBOARD)
    return Caller(Headers(scope=scope).get("user-agent", "")[:_SHOWN], key_of(scope))
