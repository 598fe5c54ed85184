"""Dashboard credentials and browser sessions in `admin.json`.

Credentials are a password, and login links that work once. Write access to the home folder proves
ownership: `omlx dashboard` makes a link by adding its digest to the file, without a running server.
The file holds no secret in the clear: the password as a scrypt digest, links and the cookies of
sessions as SHA-256 digests of 256 random bits.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from omlx.errors import BadRequest, ConfigError, TooManyRequests
from omlx.settings.file import locked, read, write

from .web.addresses import LOGIN

FILE: Final = "admin.json"
LINK_S: Final = 3600
MIN_LENGTH, MAX_LENGTH = 8, 1024
_MAX_LINKS = 8
_COST = {"n": 1 << 14, "r": 8, "p": 1}
COOKIE: Final = "omlx_session"
IDLE_S: Final = 7 * 86400
MAX_AGE_S: Final = 30 * 86400
MAX_SESSIONS: Final = 64
SEEN_S: Final = 3600.0
"""Seconds — precision of a session's last use, since each change rewrites the file."""
FREE_TRIES: Final = 5
MAX_WAIT_S: Final = 300.0
log = logging.getLogger("omlx.admin")


_UNSTORED: Final[dict[Path, set[str]]] = {}
"""Digests of login links without a file, by home folder."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """The file in `home`, read at every call. `wall` is the time of day.

    Every method raises ConfigError if the file is foreign or cannot be written.
    """

    home: Path
    wall: Callable[[], float] = time.time

    @property
    def path(self) -> Path:
        return self.home / FILE

    @property
    def has_password(self) -> bool:
        return self._password() is not None

    @property
    def fingerprint(self) -> str:
        """Digest that changes with the password."""
        return hashlib.sha256(repr(sorted((self._password() or {}).items())).encode()).hexdigest()

    def invite(self) -> str:
        """Store a new login link and return its token."""
        token = secrets.token_urlsafe(32)
        with locked(self.home):
            values, now = self._values(held=True), self.wall()
            link = {"digest": token_digest(token), "until": now + LINK_S}
            write(self.path, {**values, "links": [*_valid(values, now), link][-_MAX_LINKS:]})
        return token

    def link(self, address: str) -> str:
        """Return a new login link to the server at `address`."""
        return f"{address}{LOGIN}?token={self.invite()}"

    def link_in_memory(self, address: str) -> str:
        """Return a login link known to this process alone, where no file can be written."""
        token = secrets.token_urlsafe(32)
        _UNSTORED.setdefault(self.home, set()).add(token_digest(token))
        return f"{address}{LOGIN}?token={token}"

    def redeem(self, token: str) -> bool:
        """Use up a login link; return whether the token was valid."""
        digest = token_digest(token)
        if digest in _UNSTORED.get(self.home, ()):
            _UNSTORED[self.home].remove(digest)
            return True
        with locked(self.home):
            values = self._values(held=True)
            links = _valid(values, self.wall())
            left = [link for link in links if not hmac.compare_digest(str(link["digest"]), digest)]
            if len(left) == len(links):
                return False
            write(self.path, {**values, "links": left})
        return True

    def set_password(self, password: str) -> None:
        """Store the password's digest; slow by design. Raises BadRequest for a wrong length."""
        if not MIN_LENGTH <= len(password) <= MAX_LENGTH:
            raise BadRequest(
                "auth.password_length", param="password", low=MIN_LENGTH, high=MAX_LENGTH
            )
        salt = secrets.token_bytes(16)
        digest = hashlib.scrypt(password.encode(), salt=salt, **_COST)
        with locked(self.home):
            stored = {"salt": salt.hex(), "scrypt": digest.hex(), **_COST}
            write(self.path, {**self._values(held=True), "password": stored})

    @property
    def offers_password(self) -> bool:
        """Whether a login by link offers a password: none is set and none was declined."""
        values = self._values()
        return "password" not in values and not values.get("declined")

    def decline_password(self) -> None:
        """Store the wish for no password, until a password is set."""
        with locked(self.home):
            write(self.path, {**self._values(held=True), "declined": True})

    def is_password(self, password: str) -> bool:
        """Compare, in the same time whether a password is set or not."""
        stored: Mapping[str, Any] = self._password() or {"salt": "00", "scrypt": "00", **_COST}
        salt, cost = bytes.fromhex(stored["salt"]), {name: int(stored[name]) for name in _COST}
        digest = hashlib.scrypt(password[:MAX_LENGTH].encode(), salt=salt, **cost)
        return hmac.compare_digest(digest, bytes.fromhex(stored["scrypt"]))

    def sessions(self) -> dict[str, Session]:
        """Return the stored sessions by digest of their cookie."""
        stored = self._values().get("sessions", {})
        return {digest: Session(**fields) for digest, fields in stored.items()}

    def store_session(self, digest: str, session: Session | None) -> None:
        """Store a session, or delete it (None).

        Beyond `MAX_SESSIONS` the least recently used sessions are deleted.
        """
        with locked(self.home):
            values = self._values(held=True)
            sessions = {**values.get("sessions", {})}
            sessions.pop(digest, None)
            if session is not None:
                sessions[digest] = asdict(session)
            newest = sorted(sessions.items(), key=lambda entry: entry[1]["seen"])[-MAX_SESSIONS:]
            write(self.path, {**values, "sessions": dict(newest)})

    def _password(self) -> Mapping[str, Any] | None:
        stored = self._values().get("password")
        return stored if isinstance(stored, dict) else None

    def _values(self, *, held: bool = False) -> dict[str, Any]:
        content = read(self.path, held=held)
        if content.foreign:
            raise ConfigError("config.not_ours", file=str(self.path))
        return dict(content.values)


def _valid(values: Mapping[str, Any], now: float) -> list[dict[str, Any]]:
    # The upper bound refuses links from before the clock was set back.
    return [link for link in values.get("links", []) if now < link["until"] <= now + LINK_S]


@dataclass(frozen=True, slots=True)
class Session:
    """A login, with times of day in seconds.

    `by_link`: through a link made on this machine, which replaces the password.
    """

    begun: float
    seen: float
    fingerprint: str
    by_link: bool


class Sessions:
    """Logins of browsers, stored with the credentials: every server of the home folder knows them.

    `fingerprint` covers password and API key: a change of either ends a session. A session that
    cannot be stored, as on a full disk, lasts as long as the process.
    """

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._unstored: dict[str, Session] = {}

    def begin(self, fingerprint: str, *, by_link: bool) -> str:
        """Open a session and return the cookie's value."""
        token, now = secrets.token_urlsafe(32), self._credentials.wall()
        self._store(token_digest(token), Session(now, now, fingerprint, by_link))
        return token

    def find(self, token: str, fingerprint: str) -> Session | None:
        """Return the valid session of a cookie value, marked as used."""
        digest, now = token_digest(token), self._credentials.wall()
        session = self._unstored.get(digest) or self._credentials.sessions().get(digest)
        if session is None:
            return None
        too_old = now - session.seen > IDLE_S or now - session.begun > MAX_AGE_S
        if too_old or session.fingerprint != fingerprint:
            with suppress(ConfigError):  # the old session is refused next time, too
                self.end(token)
            return None
        if now - session.seen > SEEN_S:
            session = replace(session, seen=now)
            self._store(digest, session)
        return session

    def end(self, token: str) -> None:
        digest = token_digest(token)
        self._unstored.pop(digest, None)
        if digest in self._credentials.sessions():
            self._credentials.store_session(digest, None)

    def _store(self, digest: str, session: Session) -> None:
        try:
            self._credentials.store_session(digest, session)
            self._unstored.pop(digest, None)
        except ConfigError as error:
            log.warning("a login is not stored: %s", error.message)
            self._unstored[digest] = session


class Throttle:
    """Delay after wrong passwords: from `FREE_TRIES` on, each doubles the wait of all clients."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures, self._until = 0, 0.0

    def check(self) -> None:
        """Raise TooManyRequests during the delay."""
        left_s = self._until - self._clock()
        if left_s > 0:
            wait = int(left_s) + 1
            raise TooManyRequests("auth.throttled", retry_after_s=wait, seconds=wait)

    def failed(self) -> None:
        self._failures += 1
        if self._failures >= FREE_TRIES:
            doublings = min(self._failures - FREE_TRIES + 1, 30)  # a float overflows at 1,024
            wait = min(MAX_WAIT_S, 2.0**doublings)
            self._until = self._clock() + wait

    def succeeded(self) -> None:
        self._failures, self._until = 0, 0.0


def token_digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
