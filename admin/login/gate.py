"""Authentication of browsers: a login link or the password, then a session cookie.

No script and no other site can use the cookie.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from omlx.errors import BadRequest, Unauthorized

from ..addresses import API
from .credentials import Credentials
from .sessions import COOKIE, Session, Sessions, Throttle

Secret = Annotated[str, Field(max_length=4096)]


class Login(BaseModel):
    """Body of a login: exactly one of the two."""

    model_config = ConfigDict(extra="forbid", strict=True)

    token: Secret | None = None
    password: Secret | None = None


class NewPassword(BaseModel):
    """Body of a change of password. `current` is not needed in a session begun by a login link."""

    model_config = ConfigDict(extra="forbid", strict=True)

    password: Secret
    current: Secret | None = None


@dataclass(frozen=True, slots=True)
class Gate:
    """Sessions and logins. A change of the password or of `api_key()` ends all sessions."""

    credentials: Credentials
    sessions: Sessions
    throttle: Throttle
    api_key: Callable[[], str | None]

    @property
    def fingerprint(self) -> str:
        secret = f"{self.credentials.fingerprint} {self.api_key()!r}"
        return hashlib.sha256(secret.encode()).hexdigest()

    def find(self, request: Request) -> Session | None:
        cookie = request.cookies.get(COOKIE)
        return self.sessions.find(cookie, self.fingerprint) if cookie else None

    def logged_in(self, request: Request) -> bool:
        return self.find(request) is not None

    def session(self, request: Request) -> Session:
        """Return the session of a request. Raises Unauthorized without one."""
        session = self.find(request)
        if session is None:
            raise Unauthorized("auth.session")
        return session

    def renew(self, request: Request, response: Response, *, by_link: bool) -> None:
        """Replace the session of the request, if any, by a new one."""
        self.sessions.end(request.cookies.get(COOKIE, ""))
        token = self.sessions.begin(self.fingerprint, by_link=by_link)
        https = request.url.scheme == "https"
        response.set_cookie(COOKIE, token, path="/", httponly=True, samesite="strict", secure=https)

    def end(self, request: Request, response: Response) -> None:
        """End the session of the request, if any."""
        self.sessions.end(request.cookies.get(COOKIE, ""))
        response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")

    def router(self) -> APIRouter:
        """Return a router of the API whose endpoints all answer Unauthorized without a session."""

        async def check(request: Request) -> None:
            self.session(request)

        return APIRouter(prefix=API, dependencies=[Depends(check)])

    async def admit(self, login: Login) -> bool:
        """Check a login and return whether it was by a link.

        Raises BadRequest, Unauthorized, TooManyRequests.
        """
        if (login.token is None) == (login.password is None):
            raise BadRequest("auth.one_of_two")
        if login.token is None:
            await self._check(login.password or "")
        elif not await asyncio.to_thread(self.credentials.redeem, login.token):
            raise Unauthorized("auth.link")
        return login.token is not None

    async def set_password(self, session: Session, new: NewPassword) -> None:
        """Change the password; all sessions end.

        Raises Unauthorized, TooManyRequests, BadRequest.
        """
        if self.credentials.has_password and not session.by_link:
            await self._check(new.current or "")
        await asyncio.to_thread(self.credentials.set_password, new.password)

    async def _check(self, password: str) -> None:
        """Raise Unauthorized for a wrong password, TooManyRequests during the delay."""
        self.throttle.check()
        self.throttle.failed()  # before the slow comparison, so that parallel attempts all count
        if not await asyncio.to_thread(self.credentials.is_password, password):
            raise Unauthorized("auth.password")
        self.throttle.succeeded()
