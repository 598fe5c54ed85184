"""Sessions of logged-in browsers, in memory: keyed by a digest of the cookie, lost at a restart."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from omlx.errors import TooManyRequests

COOKIE: Final = "omlx_session"
IDLE_S: Final = 7 * 86400
MAX_AGE_S: Final = 30 * 86400
MAX_SESSIONS: Final = 64
FREE_TRIES: Final = 5
MAX_WAIT_S: Final = 300.0


@dataclass(slots=True)
class Session:
    """One login. `by_link`: through a link made on this machine, which stands for the password."""

    begun: float
    seen: float
    fingerprint: str
    by_link: bool


class Sessions:
    """Open sessions. `fingerprint` stands for password and API key: a session ends with either."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open: dict[str, Session] = {}

    def begin(self, fingerprint: str, *, by_link: bool) -> str:
        """Open a session and return its cookie value. Beyond `MAX_SESSIONS` the least used ends."""
        token, now = secrets.token_urlsafe(32), self._clock()
        self._open[token_digest(token)] = Session(now, now, fingerprint, by_link)
        while len(self._open) > MAX_SESSIONS:
            del self._open[min(self._open, key=lambda digest: self._open[digest].seen)]
        return token

    def find(self, token: str, fingerprint: str) -> Session | None:
        """Return the session of a cookie value if it is still valid, and mark it as used."""
        session, now = self._open.get(token_digest(token)), self._clock()
        if session is None:
            return None
        too_old = now - session.seen > IDLE_S or now - session.begun > MAX_AGE_S
        if too_old or session.fingerprint != fingerprint:
            self.end(token)
            return None
        session.seen = now
        return session

    def end(self, token: str) -> None:
        self._open.pop(token_digest(token), None)


class Throttle:
    """Delay after wrong passwords: from `FREE_TRIES` on each doubles the wait of all clients."""

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
