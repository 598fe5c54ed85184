"""Browsers that have logged in. Kept in memory, by digests of what their cookies hold; a new start forgets them all."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from omlx.errors import TooManyAttempts

COOKIE: Final = "omlx_session"
IDLE_S: Final = 7 * 86400
LONGEST_S: Final = 30 * 86400
MOST: Final = 64
FREE_TRIES: Final = 5
LONGEST_WAIT_S: Final = 300.0


@dataclass(slots=True)
class Session:
    """`by_link`: whoever has it came by a link from the machine itself, and may set a password without the old one."""

    begun: float
    seen: float
    fingerprint: str
    by_link: bool


class Sessions:
    """A session ends with the password and the API key that it began with: `fingerprint` stands for both."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open: dict[str, Session] = {}

    def begin(self, fingerprint: str, *, by_link: bool) -> str:
        """What the cookie is to hold."""
        token, now = secrets.token_urlsafe(32), self._clock()
        self._open[_digest(token)] = Session(now, now, fingerprint, by_link)
        while len(self._open) > MOST:
            del self._open[min(self._open, key=lambda digest: self._open[digest].seen)]
        return token

    def find(self, token: str, fingerprint: str) -> Session | None:
        """The session of a cookie, if it still counts."""
        session, now = self._open.get(_digest(token)), self._clock()
        if session is None:
            return None
        too_old = now - session.seen > IDLE_S or now - session.begun > LONGEST_S
        if too_old or session.fingerprint != fingerprint:
            self.end(token)
            return None
        session.seen = now
        return session

    def end(self, token: str) -> None:
        self._open.pop(_digest(token), None)


class Throttle:
    """Wrong passwords cost time: after `FREE_TRIES` each doubles the wait, for everybody, right or wrong."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures, self._until = 0, 0.0

    def check(self) -> None:
        """Raises TooManyAttempts while one has to wait."""
        left = self._until - self._clock()
        if left > 0:
            raise TooManyAttempts(
                "auth.throttled", retry_after_s=int(left) + 1, seconds=int(left) + 1
            )

    def failed(self) -> None:
        self._failures += 1
        if self._failures >= FREE_TRIES:
            wait = min(LONGEST_WAIT_S, 2.0 ** (self._failures - FREE_TRIES + 1))
            self._until = self._clock() + wait

    def succeeded(self) -> None:
        self._failures, self._until = 0, 0.0


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
