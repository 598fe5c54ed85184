"""Who may administer this server: a password, and links that work once. Kept in `admin.json` in the home folder.

Whoever can write that folder owns the server, so a link is made by writing its digest there: `omlx dashboard` needs no
running server, and a server no way in for it. Nothing in the file opens anything by itself: passwords are kept as
scrypt digests, links as SHA-256 digests of 256 random bits.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from omlx.errors import BadRequest, ConfigError
from omlx.settings.file import locked, read, write

FILE: Final = "admin.json"
LOGIN: Final = "/admin/login"
LINK_S: Final = 3600
SHORTEST, LONGEST = 8, 1024
_LINKS = 8
_COST = {"n": 1 << 14, "r": 8, "p": 1}


@dataclass(frozen=True, slots=True)
class Credentials:
    """The file in `home`, read at every call. `wall` tells the time to all processes: links end after `LINK_S`."""

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
        """Changes when the password does. Tells nothing about it."""
        return hashlib.sha256(repr(sorted((self._password() or {}).items())).encode()).hexdigest()

    def invite(self) -> str:
        """A token for one link. Raises ConfigError if the file cannot be written."""
        token = secrets.token_urlsafe(32)
        with locked(self.home):
            values = self._values(held=True)
            links = [
                *_valid(values, self.wall()),
                {"digest": _digest(token), "until": self.wall() + LINK_S},
            ]
            write(self.path, {**values, "links": links[-_LINKS:]})
        return token

    def link(self, address: str) -> str:
        """What logs in once at the server at `address`. Raises ConfigError."""
        return f"{address}{LOGIN}?token={self.invite()}"

    def redeem(self, token: str) -> bool:
        """Whether the token is one of ours; from now on it is not. Raises ConfigError."""
        digest = _digest(token)
        with locked(self.home):
            values = self._values(held=True)
            links = _valid(values, self.wall())
            left = [link for link in links if not hmac.compare_digest(str(link["digest"]), digest)]
            if len(left) == len(links):
                return False
            write(self.path, {**values, "links": left})
        return True

    def set_password(self, password: str) -> None:
        """Takes a while, as it should. Raises BadRequest for one that is too short, ConfigError."""
        if not SHORTEST <= len(password) <= LONGEST:
            raise BadRequest("auth.password_length", param="password", low=SHORTEST, high=LONGEST)
        salt = secrets.token_bytes(16)
        digest = hashlib.scrypt(password.encode(), salt=salt, **_COST)
        with locked(self.home):
            kept = {"salt": salt.hex(), "scrypt": digest.hex(), **_COST}
            write(self.path, {**self._values(held=True), "password": kept})

    def is_password(self, password: str) -> bool:
        """Takes as long whether there is a password or not."""
        kept: Mapping[str, Any] = self._password() or {"salt": "00", "scrypt": "00", **_COST}
        cost = {name: int(kept[name]) for name in _COST}
        digest = hashlib.scrypt(
            password[:LONGEST].encode(), salt=bytes.fromhex(kept["salt"]), **cost
        )
        return hmac.compare_digest(digest, bytes.fromhex(kept["scrypt"]))

    def _password(self) -> Mapping[str, Any] | None:
        kept = self._values().get("password")
        return kept if isinstance(kept, dict) else None

    def _values(self, *, held: bool = False) -> dict[str, Any]:
        content = read(self.path, held=held)
        if content.foreign:
            raise ConfigError("config.not_ours", file=str(self.path))
        return dict(content.values)


def _valid(values: Mapping[str, Any], now: float) -> list[dict[str, Any]]:
    return [link for link in values.get("links", []) if now < link["until"] <= now + LINK_S]


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
